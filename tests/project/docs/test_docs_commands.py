"""Every command that the documentation names is there, with every option that it is given."""

import argparse
import functools
import importlib.metadata
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from builders.pages import PAGES, ROOT, Command, commands
from ge_tools.main import build_parser

COMMANDS = [command for page in PAGES for command in commands(page)]
OPTION = re.compile(r"--?[a-z][a-z-]*")


def named(*programs: str) -> list[Command]:
    """Return the commands of these programs, each text once."""
    found = {c.text: c for c in COMMANDS if words(c)[0] in programs}
    assert found
    return list(found.values())


def words(command: Command) -> list[str]:
    """Return program and arguments, without variables before them."""
    given = shlex.split(command.text)
    while "=" in given[0]:
        del given[0]
    return given


def options(command: Command) -> list[str]:
    """Return the names of the options that a command is given."""
    return [word.split("=")[0] for word in words(command) if OPTION.match(word)]


@functools.cache
def help_of(*program: str) -> str:
    """Return what a program says to --help."""
    done = subprocess.run(
        [sys.executable, *program, "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout


@pytest.mark.parametrize("command", named("ge-backend"), ids=str)
def test_our_commands_take_the_options(command):
    """By the parser that reads them."""
    (subparsers,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    name = words(command)[1]
    if name == "…":
        return
    assert name in subparsers.choices
    known = subparsers.choices[name]._option_string_actions
    assert set(options(command)) - {"--"} <= set(known)


@pytest.mark.parametrize("command", named("make"), ids=str)
def test_make_has_the_targets(command):
    """Each is one of those that `make help` lists."""
    targets = re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text())
    assert words(command)[1] in targets


@pytest.mark.parametrize("command", named("python"), ids=str)
def test_scripts_and_modules_take_the_options(command):
    """Benchmarks say so to --help, which starts nothing; so does whatever is given an option."""
    _, *given = words(command)
    program = given[:2] if given[0] == "-m" else given[:1]
    path = ROOT / program[-1]
    if given[0] == "-m":
        path = ROOT.joinpath(*given[1].split(".")).with_suffix(".py")
    assert path.is_file() or (path.with_suffix("") / "__main__.py").is_file()
    asked = set(options(command)) - {"-m"}
    if asked or given[0] == "-m":
        assert asked <= set(OPTION.findall(help_of(*program)))


@pytest.mark.parametrize("command", named("pip"), ids=str)
def test_pip_is_asked_for_extras_that_there_are(command):
    """Each is one of the package's own."""
    known = importlib.metadata.metadata("triton-ge-backend").get_all("Provides-Extra")
    asked = re.findall(r"(?:triton-ge-backend|\.)\[([\w,]+)\]", command.text)
    assert set(",".join(asked).split(",")) - {""} <= set(known)


@pytest.mark.parametrize("command", named("docker"), ids=str)
def test_the_compose_file_has_the_profiles(command):
    """Each is a profile of some service."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    asked = re.findall(r"--profile (\w+)", command.text)
    assert asked
    assert set(asked) <= {profile for service in services for profile in service["profiles"]}


@pytest.mark.long
@pytest.mark.parametrize("command", named("pytest", ".venv/bin/pytest"), ids=str)
def test_pytest_finds_the_tests(command):
    """All that it is told to run can be imported, and there is some: of whole folders this run is proof."""
    arguments = words(command)[1:]
    if all((ROOT / argument).exists() for argument in arguments):
        return
    pytest_itself = str(Path(sys.executable).with_name("pytest"))
    done = subprocess.run(
        [pytest_itself, *arguments, "--collect-only", "-q"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("command", named("tools/probes/gpu.sh"), ids=str)
def test_shell_scripts_can_be_run(command):
    """They are executable, and bash can read them."""
    script = ROOT / words(command)[0]
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_pages_have_commands():
    """The patterns that find them still do, in blocks and in prose."""
    assert len(COMMANDS) > 80
    assert {command.block for command in COMMANDS} == {True, False}
