import os
import subprocess
import sys
from pathlib import Path

import pytest

from ge_tools import preset
from ge_tools.main import COMMANDS, build_parser, main

# `report/` is the package of what commands print, `import` is a word of the language.
OTHER_NAMES = {"reporting": "report", "importing": "import"}


def test_every_command_is_listed_in_the_help(capsys):
    """A command is a module of the package that registers itself, and none is forgotten."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])

    assert ended.value.code == 0
    names = {Path(command.__file__).stem for command in COMMANDS}
    printed = capsys.readouterr().out
    assert all(f"    {OTHER_NAMES.get(name, name)}" in printed for name in names)
    folder = Path(COMMANDS[0].__file__).parent
    assert names == {path.stem for path in folder.glob("*.py")} - {"__init__", "main"}


def test_help_is_plain_ascii():
    """Where output is nothing else, as with LC_ALL=C in some containers, it could not be printed."""
    (commands,) = build_parser()._subparsers._group_actions
    assert [name for name, one in commands.choices.items() if not one.format_help().isascii()] == []


def test_an_error_of_ours_is_one_line_and_exit_code_2(capsys, tmp_path):
    """No traceback: the message says what to change."""
    code = main(["serve", "--outlive-parent", f"--model-repository={tmp_path / 'nowhere'}"])

    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert printed.err == f"ge-backend: model repository {tmp_path / 'nowhere'} is not a folder\n"


def test_a_folder_that_may_not_be_entered_is_told(capsys, tmp_path, monkeypatch):
    """In one line, which names it, whichever command looks there."""

    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)
    library = tmp_path / "backends" / "python" / "libtriton_python.so"
    assert main(["install", str(tmp_path)]) == 2
    told = f"ge-backend: [Errno 13] Permission denied: '{library}'\n"
    assert capsys.readouterr() == ("", told)


def test_an_interrupt_is_no_traceback(capsys, monkeypatch):
    """The exit code is a shell's for SIGINT."""

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(preset, "preset", interrupted)
    assert main(["preset", "models/m", "throughput"]) == 130
    assert capsys.readouterr() == ("", "")


PRINTS = """
import sys
from ge_tools import main, preset
def tell(_):
    print("something", flush={flush})
    return 0
preset.preset = tell
sys.exit(main.main(["preset", "models/m", "throughput"]))
"""


def printed_to(stdout, *, flush):
    """What becomes of a command that prints there."""
    done = subprocess.run(
        [sys.executable, "-c", PRINTS.format(flush=flush)],
        check=False,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("flush", [True, False])
def test_a_reader_that_has_gone_is_no_traceback(flush):
    """As `head` goes, whether it is noticed at once or at the end; the code is SIGPIPE's."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = printed_to(writer, flush=flush)
    finally:
        os.close(writer)
    assert done == (141, "")


@pytest.mark.parametrize("flush", [True, False])
def test_output_onto_a_full_disk_is_one_line_and_exit_code_2(flush):
    """Whether it is noticed at once or at the end."""
    with Path("/dev/full").open("w") as full:
        done = printed_to(full, flush=flush)
    told = "ge-backend: the output cannot be written: No space left on device\n"
    assert done == (2, told)


@pytest.mark.parametrize(("closed", "out"), [(">&-", ""), ("2>&-", "[3, 3, 4]\n")])
def test_a_stream_that_was_closed_takes_what_is_written(closed, out):
    """As some start what is in the background; a note on stderr does not get into the output."""
    noted = "buckets --strategy exponential --min 5 --max 3 --json"
    command = f'"{sys.executable}" -m ge_tools.main {noted} {closed}'
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, out)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_what_is_started_finds_a_closed_stream_open(tmp_path, closed):
    """A server took a stub's shared memory for its stdout, and wrote its tables into that."""
    look = (
        "import os, pathlib\n"
        "found = [os.path.exists(f'/proc/self/fd/{n}') for n in range(3)]\n"
        f"pathlib.Path({str(tmp_path / 'found')!r}).write_text(str(found))"
    )
    start = (
        "import subprocess, sys\n"
        "from ge_tools import main, preset\n"
        f"preset.preset = lambda _: subprocess.call([sys.executable, '-c', {look!r}])\n"
        "sys.exit(main.main(['preset', 'models/m', 'throughput']))"
    )
    command = f'exec "$0" -c "$1" {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable, start], check=False)
    assert done.returncode == 0
    assert (tmp_path / "found").read_text() == "[True, True, True]"


def test_a_command_can_ask_what_a_closed_stream_is(monkeypatch):
    """As `report` does, which shows on stderr how it goes."""
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(preset, "preset", lambda _: sys.stderr.isatty())
    assert main(["preset", "models/m", "throughput"]) == 0


def test_another_broken_pipe_is_not_hidden(monkeypatch):
    """It is a fault of ours."""

    def broken(_):
        raise BrokenPipeError("of an executor")

    monkeypatch.setattr(preset, "preset", broken)
    with pytest.raises(BrokenPipeError, match="of an executor"):
        main(["preset", "models/m", "throughput"])


def test_no_command_is_a_usage_error(capsys):
    """Argparse's own code for it is 2 as well."""
    with pytest.raises(SystemExit) as ended:
        main([])

    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_an_unknown_option_is_answered_with_the_usage_of_its_command(capsys):
    """It says which there are."""
    with pytest.raises(SystemExit) as ended:
        main(["health", "--url", "localhost:8000"])

    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("usage: ge-backend health [-h] [--http HOST:PORT]")
    assert error.endswith(
        "ge-backend health: error: unrecognized arguments: --url localhost:8000\n"
    )


def test_the_module_runs_as_a_program():
    """A copied folder has no script on PATH."""
    done = subprocess.run(
        [sys.executable, "-m", "ge_tools.main", "--version"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0
    assert done.stdout.startswith("ge-backend ")


def test_serve_takes_its_options_and_leaves_the_rest_to_tritonserver():
    """What follows -- is not looked at, even where it looks like an option of ours."""
    arguments = ["serve", "--model-repository", "a", "--model-repository", "b", "--http-port", "0"]
    parsed = build_parser().parse_args([*arguments, "--", "--log-info=false", "--log-verbose=3"])

    assert parsed.model_repository == [Path("a"), Path("b")]
    assert (parsed.http_port, parsed.grpc_port, parsed.metrics_port) == (0, 8001, 8002)
    assert parsed.server_arguments == ["--log-info=false", "--log-verbose=3"]
