"""The commands in the documentation are run: offline, or with the server that the README starts."""

import fnmatch
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from builders.cann import fake_cann
from builders.graphs import token_sums
from builders.pages import PAGES, ROOT, Command, blocks, commands

# Commands that are not run here -> why. Their options are checked all the same, by
# tests/project/docs/test_docs_commands.py.
NOT_RUN = {
    "make *": "installs into .venv, or goes on for minutes; what it runs is tested by itself",
    ".venv/bin/pytest *": "runs tests, which tests/project/docs/test_docs_commands.py collects",
    "pip install *": "downloads",
    "docker compose *": "needs a Docker engine",
    "source /usr/local/Ascend/*": "needs CANN",
    "GE_DEVICE=npu:0 *": "needs an NPU; test_npu.py serves on a simulated one",
    "GE_DEVICE=cuda:0 *": "needs a GPU",
    "ge-backend compile models/encoder models/ranker": "asks the machine's NPU which chip it is",
    "tools/probes/gpu.sh*": "needs a GPU",
    "tools/probes/npu.sh*": "needs an NPU; its probes run on the simulator",
    "ge-backend serve *--openai-port*": "test_serve.py starts it and asks it",
    "ge-backend openai *": "goes on until it is stopped; test_openai.py asks it",
    "curl *": "asks a server that goes on; test_generation.py and test_openai.py send the same",
    "ge-backend plan *--load*": "fails where the machine is too slow; test_plan.py plans a load",
    "ge-backend import *": "needs a checkpoint; test_import.py imports one and asks it",
    "python -m benchmarks.*": "takes minutes",
    "python -m tools.probes.*": "takes minutes",
}
# Commands whose output the page shows are run, and compared with it, by the page's own test.
COMPARED = {
    "docs/buckets.md": "tests/project/docs/test_buckets.py",
    "docs/memory.md": "tests/project/docs/test_memory.py",
    "docs/ensembles.md": "tests/server/test_client_examples.py",
}
# Pages that their own test runs from top to bottom.
WHOLE = {"docs/tutorial.md": "tests/server/test_docs_tutorial.py"}
COMMANDS = [c for page in PAGES if page not in WHOLE for c in commands(page) if c.block]
EACH = list({command.text: command for command in COMMANDS if not command.shown}.values())
SERVE = "ge-backend serve *"
# Commands that look at a running server -> what keeps the look short.
LOOKS = {"ge-backend top*": ("--times=1", "--every=0.1"), "ge-backend report*": ("--seconds=1",)}
FREE_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--exit-timeout=3")
WIDTH = 384
LIMIT_S = 120


def excuses(command: Command) -> list[str]:
    """Return the patterns of `NOT_RUN` that a command has."""
    return [pattern for pattern in NOT_RUN if fnmatch.fnmatch(command.text, pattern)]


def to_run(*patterns: str, but: tuple[str, ...] = ()) -> list[Command]:
    """Return the commands that are run and have one of these patterns, and none of those."""
    return [
        command
        for command in EACH
        if not excuses(command)
        and any(fnmatch.fnmatch(command.text, pattern) for pattern in patterns)
        and not any(fnmatch.fnmatch(command.text, pattern) for pattern in but)
    ]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A folder with what the pages speak of: `models` with an encoder and a ranker.

    Their configurations are the two that the README shows.
    """
    folder = tmp_path_factory.mktemp("workplace")
    shown = [block.text for block in blocks("README.md") if block.text.startswith("backend:")]
    for name, config in zip(("ranker", "encoder"), shown, strict=True):
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(config)
        (folder / "models" / name / "1" / "model.onnx").write_bytes(token_sums(WIDTH))
    python = folder / "tritonserver" / "backends" / "python"
    python.mkdir(parents=True)
    (python / "libtriton_python.so").touch()
    fake_cann(folder / "cann")
    return folder


def line(command: Command, workplace: Path) -> list[str]:
    """Return what to start for a command, with the workplace's server in the usual one's place."""
    program, *arguments = shlex.split(command.text)
    ours = {"ge-backend": ["-m", "ge_tools.main"], "python": []}
    there = str(workplace / "tritonserver")
    return [
        sys.executable,
        *ours[program],
        *(a.replace("/opt/tritonserver", there) for a in arguments),
    ]


def environment(workplace: Path) -> dict[str, str]:
    """Return variables for a cache of the workplace's own, and a compiler that is a fake."""
    own = {"GE_CACHE_DIR": str(workplace / "cache"), "ASCEND_HOME_PATH": str(workplace / "cann")}
    return os.environ | own


def run(command: Command, workplace: Path, *further: str) -> str:
    """Return what a command prints; it must end well."""
    done = subprocess.run(
        [*line(command, workplace), *further],
        cwd=workplace,
        env=environment(workplace),
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def watched(installation, workplace) -> dict[str, str]:
    """What each look at the README's server printed, after some requests; it has ended then."""
    (serve,) = to_run(SERVE)
    with ExitStack() as stack:
        server = stack.enter_context(
            subprocess.Popen(
                [*line(serve, workplace), *FREE_PORTS, "--log-file=server.log"],
                cwd=workplace,
                env=environment(workplace),
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(server.send_signal, signal.SIGTERM)
        ready = [server.stdout.readline() for _ in range(4)]
        assert ready[0].startswith("ge-backend: ready"), (workplace / "server.log").read_text()
        urls = dict(words.split() for words in ready[1:])
        for length in (3, 50, 120):
            embed(urls["grpc"], length)
        stack.enter_context(embedding(urls["grpc"]))
        return {
            look.text: run(look, workplace, *short, f"--url={urls['metrics']}")
            for pattern, short in LOOKS.items()
            for look in to_run(pattern)
        }


@contextmanager
def embedding(url: str) -> Iterator[None]:
    """Send texts all the while: a report of nothing is refused."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            embed(url, 7)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def embed(url: str, length: int) -> None:
    """Send the encoder a text of so many tokens, each a 1, and check its answer."""
    ids = grpcclient.InferInput("input_ids", [1, length], "INT64")
    ids.set_data_from_numpy(np.ones((1, length), np.int64))
    with grpcclient.InferenceServerClient(url) as client:
        found = client.infer("encoder", [ids]).as_numpy("sentence_embedding")
    assert found.tolist() == [[length] * WIDTH]


def test_every_command_is_run_or_excused():
    """One reason per command is enough, and no reason is left over."""
    assert all(len(excuses(command)) <= 1 for command in EACH)
    assert {pattern for command in EACH for pattern in excuses(command)} == set(NOT_RUN)


def test_commands_with_output_are_compared_with_it():
    """The tests that do so read these very pages."""
    assert {command.page for command in COMMANDS if command.shown} == set(COMPARED)
    for page, test in COMPARED.items():
        assert Path(page).name in (ROOT / test).read_text()


def test_whole_pages_have_their_own_test():
    """It reads the very page."""
    for page, test in WHOLE.items():
        assert page in (ROOT / test).read_text()


def test_the_server_of_the_readme_can_be_watched(watched):
    """Both models are served; their requests were answered right on the way."""
    assert "encoder" in watched["ge-backend top"]
    assert "ranker" in watched["ge-backend top"]
    assert all(watched.values())


@pytest.mark.parametrize(
    "command", to_run("*", but=(SERVE, *LOOKS, "python client_examples/*")), ids=str
)
def test_a_command_does_what_the_page_says(watched, workplace, tmp_path, command):
    """It ends well, after the server has seen some traffic; what it writes, others do not see."""
    shutil.copytree(workplace, tmp_path, dirs_exist_ok=True)
    assert run(command, tmp_path)


@pytest.mark.parametrize("command", to_run("python client_examples/*"), ids=str)
def test_a_client_is_answered(triton_server, made_models, workplace, command):
    """By a server that `make serve` would start."""
    server = triton_server(made_models)
    (workplace / "client_examples").exists() or (workplace / "client_examples").symlink_to(
        ROOT / "client_examples"
    )
    url = server.http if "--protocol http" in command.text else server.grpc
    assert run(command, workplace, f"--url={url}")
