"""Questions that only an NPU answers, put to one: a report in Markdown, to be pasted into an issue.

`python -m tools.probes.npu` needs CANN, numpy and onnx, and torch_npu for what is about torch. Each
probe runs in a process of its own, because some of them may crash or hang it; what one says or how
it ended is its answer. Nothing here is a pass or a fail: docs/devices.md says what we believe.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO

from ge_backend.engines.atc.cann import find_cann
from ge_backend.errors import DeviceUnavailable

from .npu_models import Skipped
from .npu_probes import PROBES, Bench

__all__ = ["main"]

LIMIT_S = 300.0
KILLED_S = 10.0
LAST_LINES = 3
DRIVER = Path("/usr/local/Ascend/driver/version.info")


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
    command = [sys.executable, "-m", "tools.probes.npu", "--probe", name, "--index", str(index)]
    # Files, not pipes: what a probe has started may outlive it.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        try:
            ending = f"ended with status {status}" if (status := process.wait(limit_s)) else ""
        except subprocess.TimeoutExpired:
            ending = f"hung: no end after {limit_s:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            with contextlib.suppress(subprocess.TimeoutExpired):  # one may be held by the driver
                process.wait(KILLED_S)
        answer = _last_answer(_read(out))
        said = " / ".join(_read(err).strip().splitlines()[-LAST_LINES:])
    if answer is None:
        return _cell(f"**{ending or 'ended without an answer'}**: {said}"), False
    return _cell(answer["text"] + (f" **and then {ending}**" if ending else "")), (
        answer["kind"] == "answer"
    )


def _last_answer(printed: str) -> dict[str, str] | None:
    """Return what a probe has answered, whatever else it, or CANN, has printed."""
    for line in reversed(printed.splitlines()):
        with contextlib.suppress(ValueError, TypeError):
            found = dict(json.loads(line))
            if found.keys() == {"kind", "text"}:
                return found
    return None


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _answer(name: str, index: int) -> dict[str, str]:
    """Run a probe in this process."""
    with tempfile.TemporaryDirectory(prefix="ge-npu-") as folder:
        try:
            with contextlib.closing(Bench(Path(folder), index)) as bench:
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
    try:
        found.append(f"CANN {find_cann(os.environ).version}")
    except DeviceUnavailable:
        found.append("no atc")
    with contextlib.suppress(OSError):
        found.append(f"driver {' '.join(DRIVER.read_text(errors='replace').split())[:200]}")
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    return [*found, *([f"ASCEND_RT_VISIBLE_DEVICES={visible}"] if visible else [])]


if __name__ == "__main__":
    sys.exit(main())
