"""transformers' `generate` in this process: prompts padded into one batch, or one by one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from demo.chat_model import prepare
from rich.console import Console
from transformers import AutoModelForCausalLM

from benchmarks.generation.workloads import Ask
from benchmarks.harness.memory import memory_by_role

__all__ = ["DTYPES", "OneByOne", "Padded"]

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "chat_model"

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Requests that have come are gathered for this long, as a batcher would.
GATHER_S = 0.01


class Padded:
    """All that waits becomes one batch, padded on the left; nobody has a token before its end."""

    name = "padded generate"
    workloads: Sequence[str] = ("mixed",)
    most = 32

    def __init__(self, precision: str) -> None:
        folder = prepare(CACHE, Console(stderr=True))
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[precision]).eval()
        self._waiting: list[tuple[Ask, asyncio.Future[None]]] = []
        self._busy = False

    def awake(self) -> AbstractContextManager[None]:
        """See `System`."""
        return nullcontext()

    async def tokens(self, ask: Ask) -> AsyncIterator[int]:
        """Yield all tokens at once, when the whole batch is done."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ask, done))
        if not self._busy:
            self._busy = True
            await asyncio.sleep(GATHER_S)
            await self._serve()
        await done
        yield ask.tokens

    def cpu_s(self) -> float:
        """Return the CPU time of this process, the client's included."""
        return time.process_time()

    def memory_mib(self) -> float:
        """Return the memory of this process, the client's included."""
        return sum(memory_by_role([os.getpid()]).values()) / 2**20

    async def _serve(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self.most], self._waiting[self.most :]
            await asyncio.to_thread(self._generate, [ask for ask, _ in batch])
            for _, done in batch:
                done.set_result(None)
        self._busy = False

    def _generate(self, asks: Sequence[Ask]) -> None:
        longest = max(len(ask.prompt) for ask in asks)
        rows = [(0,) * (longest - len(ask.prompt)) + ask.prompt for ask in asks]
        mask = [[0] * (longest - len(a.prompt)) + [1] * len(a.prompt) for a in asks]
        settings: dict[str, Any] = {
            "attention_mask": torch.tensor(mask),
            "max_new_tokens": max(ask.tokens for ask in asks),
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 0,
        }
        with torch.inference_mode():
            self._model.generate(torch.tensor(rows), **settings)


class OneByOne(Padded):
    """Each request is a batch of its own, in the order of coming."""

    name = "one by one"
    workloads = ("single",)
    most = 1
