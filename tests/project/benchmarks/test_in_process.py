"""Engines without a server, asked over a pipe: what goes over it, and an engine that dies."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.generation import in_process
from benchmarks.generation.in_process import InProcess
from benchmarks.generation.run import drive
from benchmarks.generation.workloads import Ask

ASKS = [Ask(at_s=0.0, prompt=(7,) * n, tokens=n) for n in (3, 1, 5)]
# Writes a token of each text per step, and something of its own to standard output.
ENGINE = f"""
import sys
sys.path.insert(0, {str(in_process.RIVALS)!r})
from pipe import asked, said
left = {{}}
for one in asked(lambda: bool(left)):
    if one:
        left[one.number] = one.tokens
        continue
    print("a library has its say")
    if len(sys.argv) > 1:
        sys.exit("no memory for texts")
    for number in list(left):
        said(number, [1])
        left[number] -= 1
        if not left[number]:
            del left[number]
"""


def engine(*arguments: str) -> InProcess:
    """Return the engine above."""
    return InProcess("made up", lambda: (sys.executable, "-c", ENGINE, *arguments))


async def _driven(system: InProcess) -> tuple[float, float, int]:
    async with system:
        outcome = await drive(system, ASKS)
    return outcome.tokens_per_s, outcome.memory_mib, len(outcome.first_ms)


def test_each_request_has_its_tokens() -> None:
    """Texts of unequal lengths run at once, and what libraries print is no answer."""
    tokens_per_s, memory_mib, texts = asyncio.run(_driven(engine()))
    assert tokens_per_s > 0
    assert memory_mib > 1
    assert texts == len(ASKS)


def test_an_engine_that_ends_is_quoted() -> None:
    """The error has the engine's own last lines."""
    with pytest.raises(RuntimeError, match=r"made up ended(.|\n)*no memory for texts"):
        asyncio.run(_driven(engine("dies")))


def test_an_engine_that_cannot_start_is_quoted() -> None:
    """The error has what Python says."""
    system = InProcess("made up", lambda: (sys.executable, "-c", "import no_such_engine"))
    with pytest.raises(RuntimeError, match="No module named 'no_such_engine'"):
        asyncio.run(_driven(system))


def test_a_pipe_ends_with_its_input() -> None:
    """An engine whose caller has gone ends by itself."""
    given = json.dumps([0, [7], 1]) + "\n"
    done = subprocess.run(
        [sys.executable, "-c", ENGINE],
        check=False,
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "ready\n[0, [1]]\n")


def test_what_was_made_is_made_once(tmp_path: Path) -> None:
    """A draft that fails leaves nothing that a later run would take."""
    with pytest.raises(subprocess.CalledProcessError):
        in_process._made(tmp_path / "file", lambda draft: in_process._run("false", draft))
    assert not (tmp_path / "file").exists()
    for text in ("first", "second"):
        in_process._made(
            tmp_path / "file", lambda draft, text=text: draft.write_text(text) and None
        )
    assert (tmp_path / "file").read_text() == "first"
