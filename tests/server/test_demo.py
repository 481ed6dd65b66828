from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest

# The first run exports the encoder, which takes most of a minute.
pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "demo", *arguments]


def environment(folder: Path) -> dict[str, str]:
    """A temporary folder of its own, so that what the demo leaves there can be seen."""
    return {**os.environ, "TMPDIR": str(folder), "COLUMNS": "140"}


def processes_in(folder: Path) -> list[int]:
    """Return the processes that were started with this temporary folder."""
    mark = f"TMPDIR={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    """A short path: sockets have to fit below it."""
    return tmp_path_factory.mktemp("d")


def test_the_demo_prints_neighbours_and_figures_and_leaves_nothing(folder):
    """Every embedding is right (exit code 0), and the counters count what was sent."""
    done = subprocess.run(
        command("--rounds", "2", "--concurrency", "16"),
        cwd=ROOT,
        env=environment(folder),
        check=False,
        capture_output=True,
        text=True,
        timeout=380,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"requests +│ +128 │ +128", done.stdout)
    assert "The capital of France is Paris." in done.stdout
    assert re.search(r"4 chats at once: \d+ tokens per second, first token after", done.stdout)
    # Where each text has run alone it is 0.0e+00.
    texts = re.search(r"texts in, largest difference from the unpadded truth: (\S+)", done.stdout)
    assert texts is not None
    assert float(texts[1]) < 1e-4
    assert re.search(r"latency p99 +│ +[\d.]+ ms", done.stdout)
    assert "Jupiter's largest moon is bigger than the planet Mercury." in done.stdout
    same = re.search(r"(\d+) of 64 texts", done.stdout)
    assert same is not None
    assert int(same[1]) >= 56
    assert "next: make demo ARGS=--keep" in done.stdout
    assert "docs/tutorial.md" in done.stdout.splitlines()[-1]
    assert processes_in(folder) == []
    assert list(folder.glob("ge-*")) == []


def test_keep_leaves_the_server_running_until_it_is_interrupted(folder):
    """The endpoints are printed, OpenAI's client can chat there; ^C then stops everything."""
    demo = subprocess.Popen(
        command("--rounds", "1", "--keep"),
        cwd=ROOT,
        env=environment(folder),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        printed = ""
        while "until ^C" not in printed:
            line = demo.stdout.readline()
            assert line, printed
            printed += line
        assert "/metrics" in printed
        assert len(processes_in(folder)) > 1
        url = re.search(r"OpenAI's API (http://\S+/v1)", printed)[1]
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
            answer = client.chat.completions.create(
                model="smollm2",
                messages=[
                    {
                        "role": "user",
                        "content": "What is the capital of France? Answer in one sentence.",
                    }
                ],
                temperature=0,
                max_tokens=16,
            )
            data = client.embeddings.create(model="minilm_text", input=["rain", "a shower"]).data
        assert "Paris" in answer.choices[0].message.content
        assert [len(each.embedding) for each in data] == [384, 384]

        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=60) == 130
    finally:
        demo.kill()
        demo.wait()
        demo.stdout.close()
    assert processes_in(folder) == []
    assert list(folder.glob("ge-*")) == []


def test_interrupting_while_the_server_starts_stops_it(folder):
    """^C during warm-up leaves no server behind."""
    demo = subprocess.Popen(command(), cwd=ROOT, env=environment(folder), stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while not list(folder.glob("ge-demo-*/server.log")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.0)

        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=60) == 130
    finally:
        demo.kill()
        demo.wait()
    assert processes_in(folder) == []
    assert list(folder.glob("ge-*")) == []
