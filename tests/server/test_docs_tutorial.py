"""The tutorial, run in one shell from top to bottom; what it prints is what the page shows."""

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from builders.checkpoints import as_sentence_encoder, write_checkpoint
from builders.graphs import token_sums
from builders.pages import ROOT, blocks
from builders.writer import make_writer
from ge_tools.tritonserver import free_ports

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(580),
    pytest.mark.filterwarnings("ignore"),
]

PAGE = "docs/tutorial.md"
LIMIT_S = 540
MARK = "=== step"
WIDTH = 4
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
WAIT = "until grep -qs {} said; do sleep 0.2; kill -0 $! || exit 3; done; cat said"
# Commands and figures name these; the test takes free ones.
PORTS = {"http": "8000", "grpc": "8001", "metrics": "8002", "openai": "9000"}


def steps() -> list[tuple[str, str]]:
    """Return the page's commands, `&` and all, each with what the page says that it prints."""
    found = []
    for block in blocks(PAGE):
        if block.language == "console":
            for text in re.split(r"(?m)^\$ ", block.text)[1:]:
                command, _, shown = text.partition("\n")
                found.append((command, shown.strip()))
    return found


def script(ports: dict[str, int]) -> str:
    """Return the commands as a script: on free ports, waiting for each server to be ready."""
    own = " ".join(f"--{name}-port={ports[name]}" for name in ("http", "grpc", "metrics"))
    lines = [
        f'ge-backend() {{ "{sys.executable}" -m ge_tools.main "$@"; }}',
        f'python3() {{ "{sys.executable}" "$@"; }}',
    ]
    for number, (command, _) in enumerate(steps()):
        line = command.replace("--openai-port 9000", f"--openai-port {ports['openai']}")
        for name, usual in PORTS.items():
            line = line.replace(f"localhost:{usual}", f"localhost:{ports[name]}")
        # Time for a server to end in order on a busy machine, and for its metrics to be told there.
        line = line.replace("ge-backend serve", f"ge-backend serve {own} --exit-timeout=20")
        metrics = f"http://localhost:{ports['metrics']}/metrics"
        line = line.replace("ge-backend top", f"ge-backend top --every=5 --url={metrics}")
        if "ge-backend serve" in line:
            # `exec`: what `kill %1` ends is the server's own process, as in a reader's shell.
            line = line.replace("ge-backend", f'exec "{sys.executable}" -m ge_tools.main', 1)
            last = "openai" if "--openai-port" in line else "metrics"  # of what it says
            # Not the last server's words, which the next one's shell may clear a moment later.
            line = (
                f"rm -f said\n({line.removesuffix('&')}) > said 2> trouble &\n{WAIT.format(last)}"
            )
        lines += [f"printf '\\n{MARK} {number}\\n'", line]
    return "\n".join([*lines, ""])


@contextlib.contextmanager
def kept(ports: Iterable[int]) -> Iterator[None]:
    """Keep ports from whoever looks for free ones, also while none of the page's servers runs."""
    with contextlib.ExitStack() as stack:
        for port in ports:
            held = stack.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers' own do
            held.bind(("127.0.0.1", port))
        yield


@pytest.fixture(scope="module")
def printed(installation, tmp_path_factory) -> list[str]:
    """What each step printed, in a folder that has what the reader has."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "encoder.onnx").write_bytes(token_sums(WIDTH))
    (code,) = (block.text for block in blocks(PAGE) if block.language == "python")
    (folder / "flowers.py").write_text(code)
    as_sentence_encoder(write_checkpoint(folder / "all-MiniLM-L6-v2"))
    chat = folder / "SmolLM2-135M-Instruct"
    chat.mkdir()
    make_writer(chat)
    (chat / "chat_template.jinja").write_text(TEMPLATE)
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    with kept(ports.values()):
        done = subprocess.run(
            ["bash", "-c", script(ports)],
            cwd=folder,
            env=os.environ | {"GE_CACHE_DIR": str(folder / "cache"), "COLUMNS": "200"},
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    trouble = (folder / "trouble").read_text() if (folder / "trouble").exists() else ""
    assert done.returncode in {0, 143}, done.stdout + done.stderr + trouble
    for name, usual in PORTS.items():
        done.stdout = done.stdout.replace(f"127.0.0.1:{ports[name]}", f"127.0.0.1:{usual}")
    parts = re.split(rf"(?m)^{MARK} \d+\n", done.stdout)[1:]
    assert len(parts) == len(steps()), done.stdout + done.stderr + trouble
    return [part.strip() for part in parts]


@pytest.mark.parametrize("number", range(len(steps())))
def test_a_step_prints_what_the_page_shows(printed, number):
    """Where the page has `…`, anything."""
    command, shown = steps()[number]
    # A line of its own stands for any lines, else for some of one.
    lines = [
        "(?:.*\\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + "\\n"
        for line in shown.splitlines()
    ]
    found = f"{printed[number]}\n" if printed[number] else ""
    assert re.fullmatch("".join(lines), found), f"$ {command}\n{found}"


def test_the_table_of_step_8_shows_requests(printed):
    """They are still being sent then, as they are when a reader gets there."""
    (number,) = [n for n, (command, _) in enumerate(steps()) if "ge-backend top" in command]
    (rate,) = re.findall(r"(?m)^encoder +([\d.]+) ", printed[number])
    assert float(rate) > 0


def test_the_tutorial_has_ten_steps_and_is_found():
    """Numbered, and linked where readers begin."""
    text = (ROOT / PAGE).read_text()
    assert re.findall(r"(?m)^## (\d+)\. ", text) == [str(number) for number in range(1, 11)]
    assert f"]({PAGE})" in (ROOT / "README.md").read_text()
    assert Path(PAGE).name in Path(__file__).name.replace("test_docs_", "").replace(".py", ".md")
