"""A checkpoint run by vLLM's `AsyncLLM`; any thread asks, one thread has its loop.

`AsyncLLM` starts processes of its own for the engine and its workers. When they die it can only be
thrown away, and this process with it.

Source: vllm-project/vllm 0.32.0: vllm/v1/engine/async_llm.py, vllm/sampling_params.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from ge_backend.engines.preprocess.text import open_tokenizer
from ge_backend.errors import (
    DeadlineExceeded,
    DeviceUnavailable,
    GeError,
    GraphFailed,
    InvalidRequest,
    QueueFull,
)
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_backend.tensors import Array
from ge_text.models.json_schema import with_prepared_rules
from ge_text.models.open import OpenedScheduled, OpenScheduled
from ge_text.models.scheduled import EngineRequest, Levels, TokenDelta
from ge_text.models.structure import Structure, StructureKind
from ge_text.vllm.arguments import engine_arguments
from ge_text.vllm.orphans import watch_for_orphans

__all__ = ["VllmModel", "open_vllm"]

log = logging.getLogger(__name__)

HEALTH_S = 0.5
# Threads are running here already, which processes that are forked would not have. And nothing is
# reported to vLLM's makers. Source: vllm/envs.py.
ENVIRONMENT = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_NO_USAGE_STATS": "1"}


class VllmModel:
    """See the module; a `ScheduledModel`.

    Args:
        arguments: as `engine_arguments` gives them.
        vocabulary, eos: as in `ScheduledModel`.
        on_death: called when vLLM's own processes have died.

    Raises:
        DeviceUnavailable: it cannot start; its own words are in the log.
    """

    def __init__(
        self,
        arguments: AsyncEngineArgs,
        *,
        vocabulary: int,
        eos: tuple[int, ...],
        on_death: Callable[[], None],
    ) -> None:
        os.environ.update({**ENVIRONMENT, **os.environ})
        watch_for_orphans()
        self._levels: dict[int, Levels] = {}  # of each of its engines
        self._on_death = on_death
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        try:
            opening = asyncio.run_coroutine_threadsafe(self._open(arguments), self._loop)
            self._engine = opening.result()
        except GeError:
            self._end_loop()
            raise
        config = self._engine.vllm_config
        self.vocabulary, self.eos = vocabulary, eos
        self.max_positions: int = config.model_config.max_model_len
        self.cache_blocks: int = config.cache_config.num_gpu_blocks
        self.block_size: int = config.cache_config.block_size
        asyncio.run_coroutine_threadsafe(self._watched(), self._loop)

    def begin(self, request: EngineRequest, send: Callable[[TokenDelta], None]) -> None:
        """Write a text; see `ScheduledModel`."""
        self._loop.call_soon_threadsafe(self._start, request, send)

    def end(self, name: str) -> None:
        """Stop writing a text; see `ScheduledModel`."""
        self._loop.call_soon_threadsafe(self._stop, name)

    def levels(self) -> Levels:
        """Return how full it is as of the last step, its engines all together."""
        each = list(self._levels.values())
        return Levels(
            waiting=sum(levels.waiting for levels in each),
            running=sum(levels.running for levels in each),
            cache_used=sum(levels.cache_used for levels in each) / max(1, len(each)),
            preempted=sum(levels.preempted for levels in each),
        )

    def close(self) -> None:
        """End vLLM's processes."""
        asyncio.run_coroutine_threadsafe(_settled(), self._loop).result()
        self._engine.shutdown()
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self, arguments: AsyncEngineArgs) -> AsyncLLM:
        try:
            return AsyncLLM.from_engine_args(arguments, stat_loggers=[self._logger])
        except Exception as error:
            text = f"vLLM does not start: {type(error).__name__}: {error}"
            raise DeviceUnavailable(f"{text} (its own output is in the server's log)") from error

    def _logger(self, config: object, index: int = 0) -> _Logger:
        """Return what notes what one of its engines tells; called by vLLM."""
        del config
        return _Logger(self._levels, index)

    async def _watched(self) -> None:
        while not self._engine.errored:  # noqa: ASYNC110 - vLLM has no event for it
            await asyncio.sleep(HEALTH_S)
        log.critical("vLLM's processes have died")
        self._on_death()

    def _start(self, request: EngineRequest, send: Callable[[TokenDelta], None]) -> None:
        self._tasks[request.name] = task = self._loop.create_task(self._write(request, send))
        task.add_done_callback(lambda _: self._tasks.pop(request.name, None))

    def _stop(self, name: str) -> None:
        if (task := self._tasks.get(name)) is not None:
            task.cancel()

    async def _write(self, request: EngineRequest, send: Callable[[TokenDelta], None]) -> None:
        try:
            await asyncio.wait_for(self._stream(request, send), request.timeout_s)
        except EngineDeadError:
            self._on_death()
        except asyncio.TimeoutError:
            send(TokenDelta(error=DeadlineExceeded.within(request.timeout_s or 0.0)))
        except Exception as error:  # noqa: BLE001 - whatever vLLM raises ends this text alone
            send(TokenDelta(error=_mapped(error)))

    async def _stream(self, request: EngineRequest, send: Callable[[TokenDelta], None]) -> None:
        structure = request.structure
        if structure is not None and self._engine.vllm_config.model_config.skip_tokenizer_init:
            raise InvalidRequest(
                f"{structure.kind.value} needs vLLM's own tokenizer; put tokenizer_config.json "
                "beside the checkpoint's tokenizer.json"
            )
        wanted = _sampling_params(request)
        prompt: dict[str, object] = {"prompt_token_ids": list(request.prompt)}
        if request.cache_salt:
            prompt["cache_salt"] = request.cache_salt
        answer = self._engine.generate(prompt, wanted, request.name, priority=request.priority)
        async for output in answer:
            if output.outputs:
                send(_delta(output.outputs[0], request.sampling.logprobs))


def open_vllm(asked: OpenScheduled) -> OpenedScheduled:
    """See `open_scheduled`; our own tokenizer is beside the model."""
    checkpoint = read_checkpoint(asked.folder, quantised=True)
    path = checkpoint.tokenizer
    model = VllmModel(
        engine_arguments(asked.folder, asked.precision, asked.served_as, asked.options),
        vocabulary=checkpoint.vocabulary,
        eos=checkpoint.eos,
        on_death=asked.on_death,
    )
    return OpenedScheduled(
        model=model,
        tokenizer=None if path is None else open_tokenizer(path),
        sampling=checkpoint.sampling,
    )


async def _settled() -> None:
    """Cancel all other tasks of the loop, and wait for them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _sampling_params(request: EngineRequest) -> SamplingParams:
    sampling = request.sampling
    wanted = SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias) or None,
        seed=sampling.seed if request.seeded else None,
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        stop_token_ids=list(request.ends),
        # `stop_token_ids` has the ends of text; for a structure vLLM adds those that it knows.
        ignore_eos=request.structure is None,
        logprobs=sampling.logprobs,
        skip_reading_prefix_cache=not request.prefix_cache,
        structured_outputs=_structured(request.structure),
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    # vLLM makes these of texts; here they are tokens already.
    wanted._bad_words_token_ids = [list(word) for word in sampling.bad_words_ids] or None  # noqa: SLF001
    return wanted


def _structured(structure: Structure | None) -> StructuredOutputsParams | None:
    if structure is None:
        return None
    value = structure.text
    if structure.kind is StructureKind.CHOICE:
        value = json.loads(value)
    elif structure.kind is StructureKind.GRAMMAR:
        value = with_prepared_rules(value)
    return StructuredOutputsParams(**{structure.kind.value.removeprefix("guided_"): value})


def _delta(output: Any, logprobs: int | None) -> TokenDelta:
    """Return what an output says; `logprobs` as in `Sampling`."""
    tokens = tuple(map(int, output.token_ids))
    finish = output.finish_reason or ""
    if finish and finish not in {"stop", "length"}:
        return TokenDelta(error=GraphFailed(f"vLLM has ended the text: {finish}"))
    if logprobs is None:
        return TokenDelta(
            tokens=tokens,
            logprobs=(math.nan,) * len(tokens),
            ranks=(0,) * len(tokens),
            top=(None,) * len(tokens),
            finish=finish,
        )
    rows = list(output.logprobs or ())
    own = [row[token] for token, row in zip(tokens, rows, strict=True)]
    top = tuple(_best(row, logprobs) for row in rows)
    return TokenDelta(
        tokens=tokens,
        logprobs=tuple(float(entry.logprob) for entry in own),
        ranks=tuple(int(entry.rank or 0) for entry in own),
        top=top,
        finish=finish,
    )


def _best(row: Mapping[int, Any], count: int) -> tuple[Array, Array] | None:
    """Return the best tokens and their log-probabilities, best first; None for no count."""
    ranked = sorted(row.items(), key=lambda item: (item[1].rank, item[0]))
    ids = [token for token, value in ranked if value.rank <= count][:count]
    values = [row[token].logprob for token in ids]
    return (np.array(ids, np.int64), np.array(values, np.float32)) if ids else None


def _mapped(error: Exception) -> GeError:
    if isinstance(error, GeError):
        return error
    if isinstance(error, GracefulHTTPError):
        return QueueFull(f"vLLM takes no more requests: {error}")
    if isinstance(error, (VLLMClientError, ValueError, TypeError)):
        return InvalidRequest(f"vLLM refuses the request: {error}")
    log.error("vLLM failed over a request", exc_info=error)
    return GraphFailed(f"vLLM failed over the request: {type(error).__name__}: {error}")


class _Logger:
    """In the form of vLLM's `StatLoggerBase`."""

    def __init__(self, levels: dict[int, Levels], index: int) -> None:
        self._levels = levels
        self._index = index

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Take what one step tells."""
        before = self._levels.get(self._index, Levels())
        lost = 0 if iteration_stats is None else iteration_stats.num_preempted_reqs
        now = scheduler_stats
        self._levels[self._index] = Levels(
            waiting=before.waiting if now is None else now.num_waiting_reqs,
            running=before.running if now is None else now.num_running_reqs,
            cache_used=before.cache_used if now is None else now.kv_cache_usage,
            preempted=before.preempted + lost,
        )

    def log_engine_initialized(self) -> None:
        """Nothing: vLLM's own logger says it."""

    def log(self) -> None:
        """Nothing: vLLM's own logger says it."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Nothing: it never sleeps."""
