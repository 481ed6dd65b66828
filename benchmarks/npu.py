"""Questions that only an NPU answers, put to one: a report in Markdown, to be pasted into an issue.

`python -m benchmarks.npu` needs CANN, numpy and onnx, and torch_npu for what is about torch. Each
probe runs in a process of its own, because some of them may crash or hang it; what one says or how
it ended is its answer. Nothing here is a pass or a fail: docs/devices.md says what we believe.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.npu_probes import PROBES, Bench, Skipped

__all__ = ["main"]

LIMIT_S = 150.0
LAST_LINES = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask everything, or one probe, and print what came; return 1 if there is no NPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", type=int, default=0, help="which NPU")
    parser.add_argument("--only", choices=list(PROBES), action="append", help="these probes")
    parser.add_argument("--probe", choices=list(PROBES), help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one probe")
    parser.add_argument("--out", type=Path, help="write the report there too")
    options = parser.parse_args(arguments)
    if options.probe:
        print(json.dumps(_answer(options.probe, options.index)))
        return 0
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    known = _report(options.only or list(PROBES), options.index, options.limit, say)
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if known else 1


def _report(names: Sequence[str], index: int, limit_s: float, say: Callable[[str], None]) -> bool:
    say(f"## NPU report: {', '.join(_machine())}")
    say("")
    say("| question | what came |")
    say("| --- | --- |")
    known = False
    for name in names:
        answer, ended = _asked(name, index, limit_s)
        known = known or ended
        say(f"| {PROBES[name].__doc__} (`{name}`) | {answer} |")
    return known


def _asked(name: str, index: int, limit_s: float) -> tuple[str, bool]:
    """Return a probe's answer as one line, and whether it came to its end."""
    command = [sys.executable, "-m", "benchmarks.npu", "--probe", name, "--index", str(index)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"**hung**: no answer after {limit_s:.0f} s", False
    lines = done.stdout.strip().splitlines()
    try:
        answer = dict(json.loads(lines[-1]))
    except (IndexError, ValueError):
        said = " / ".join(done.stderr.strip().splitlines()[-LAST_LINES:])
        return _cell(f"**ended with status {done.returncode}**: {said}"), False
    status = f" **and then ended with status {done.returncode}**" if done.returncode else ""
    return _cell(answer["text"] + status), answer["kind"] == "answer"


def _answer(name: str, index: int) -> dict[str, str]:
    """Run a probe in this process."""
    with tempfile.TemporaryDirectory(prefix="ge-npu-") as folder:
        try:
            bench = Bench(Path(folder), index)
            return {"kind": "answer", "text": PROBES[name](bench)}
        except Skipped as reason:
            return {"kind": "skipped", "text": f"not asked: {reason}"}
        except Exception as error:  # noqa: BLE001 - what it raises is an answer
            return {"kind": "answer", "text": f"{type(error).__name__}: {error}"}


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _machine() -> list[str]:
    found = [f"Python {platform.python_version()}", platform.machine()]
    for package in ("torch", "torch_npu", "numpy", "onnx"):
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"no {package}")
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    return [*found, *([f"ASCEND_RT_VISIBLE_DEVICES={visible}"] if visible else [])]


if __name__ == "__main__":
    sys.exit(main())
