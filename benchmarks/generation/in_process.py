"""Engines without a server: each in a process that has the engine and a pipe to this one.

Each has a Python environment of its own, made with pip at the first run and kept: OpenVINO GenAI
with what exports a checkpoint for it, and llama.cpp, which its package compiles for this processor
(that takes a C++ compiler and minutes).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import tempfile
import venv
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from demo import chat_model
from rich.console import Console

from benchmarks.generation.run import System
from benchmarks.generation.workloads import Ask
from benchmarks.harness.memory import memory_by_role

__all__ = ["InProcess", "genai", "llama"]

CACHE = Path(__file__).resolve().parents[2] / ".cache"
RIVALS = Path(__file__).resolve().parents[1] / "rivals"
LAST = 2000  # bytes of a log that an error shows

GENAI = ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0")
# What `optimum-cli` calls them; it writes no BF16.
WEIGHTS = {"bf16": "fp16", "fp32": "fp32", "int8": "int8"}
LLAMA = ("llama-cpp-python==0.3.36",)
# `llama_ftype` of llama.h.
FILES = {"bf16": ("BF16", 32), "fp32": ("F32", 0), "int8": ("Q8_0", 7)}
QUANTISE = """if 1:
    import sys, llama_cpp
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = int(sys.argv[3]), True
    given, made = (name.encode() for name in sys.argv[1:3])
    sys.exit(llama_cpp.llama_model_quantize(given, made, params))
"""


class InProcess(System):
    """An engine in a process of its own, which runs while the block does.

    Args:
        name: what it is called in tables.
        command: makes what it needs, and returns what starts it; it speaks as `rivals/pipe.py`
            says.
    """

    def __init__(self, name: str, command: Callable[[], Sequence[str | Path]]) -> None:
        self.name = name
        self._command = command
        self._came: list[asyncio.Queue[int]] = []

    async def __aenter__(self) -> InProcess:  # noqa: PYI034
        command = await asyncio.to_thread(self._command)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__aexit__`
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=self._log, limit=1 << 20
        )
        assert self._process.stdin
        assert self._process.stdout
        self._asks, self._answers = self._process.stdin, self._process.stdout
        if await self._answers.readline() != b"ready\n":
            raise self._ended()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            self._process.kill()
        await asyncio.gather(self._process.wait(), self._reading)
        self._log.close()

    async def tokens(self, ask: Ask) -> AsyncIterator[int]:
        """Yield how many tokens each message brings."""
        number, came = len(self._came), asyncio.Queue[int]()
        self._came.append(came)
        self._asks.write(json.dumps([number, ask.prompt, ask.tokens]).encode() + b"\n")
        left = ask.tokens
        while left > 0:
            count = await came.get()
            if not count:
                raise self._ended()
            left -= count
            yield count

    def cpu_s(self) -> float:
        """Return the CPU time of its process."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def memory_mib(self) -> float:
        """Return the memory of its process."""
        return sum(memory_by_role([self._process.pid]).values()) / 2**20

    async def _read(self) -> None:
        while line := await self._answers.readline():
            number, ids = json.loads(line)
            self._came[number].put_nowait(len(ids))
        for came in self._came:
            came.put_nowait(0)

    def _ended(self) -> RuntimeError:
        self._log.seek(0)
        last = self._log.read()[-LAST:].decode(errors="replace")
        return RuntimeError(f"{self.name} ended before its answers; its last lines:\n{last}")


def genai(precision: str) -> InProcess:
    """Return OpenVINO GenAI on what optimum exports of the checkpoint, `bf16`, `fp32` or `int8`."""

    def command() -> Sequence[str | Path]:
        python = _python(GENAI)
        folder = python.parents[1] / f"smollm2-{precision}"
        checkpoint = chat_model.prepare(CACHE / "chat_model", Console(stderr=True))
        how = ("--task", "text-generation-with-past", "--weight-format", WEIGHTS[precision])
        export = (python.parent / "optimum-cli", "export", "openvino", "-m", checkpoint, *how)
        _made(folder, lambda draft: _run(*export, draft))
        return python, RIVALS / "text_genai.py", folder, precision

    return InProcess("openvino genai", command)


def llama(precision: str) -> InProcess:
    """Return llama.cpp on BF16, F32 or Q8_0 of the file that the checkpoint is made from."""

    def command() -> Sequence[str | Path]:
        python = _python(LLAMA)
        kind, number = FILES[precision]
        file = python.parents[1] / f"smollm2-{kind}.gguf"
        make = (python, "-c", QUANTISE, chat_model.source())
        _made(file, lambda draft: _run(*make, draft, str(number)))
        return python, RIVALS / "text_llama.py", file

    return InProcess("llama.cpp", command)


def _python(packages: Sequence[str]) -> Path:
    """Return the Python of an environment that has the packages, making it at the first call."""
    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    folder = CACHE / "rivals" / f"{packages[0].partition('=')[0]}-{key}"
    python, whole = folder / "bin" / "python", folder / "whole"
    if not whole.exists():
        venv.create(folder, with_pip=True, clear=True)
        _run(python, "-m", "pip", "install", "-q", *packages)
        whole.touch()
    return python


def _made(path: Path, make: Callable[[Path], None]) -> None:
    """Have `make` write a draft that becomes `path`, where that is not there."""
    draft = path.with_name(f"draft-{path.name}")
    if not path.exists():
        make(draft)
        draft.rename(path)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=2, env={**os.environ, "HF_HUB_OFFLINE": "1"})
