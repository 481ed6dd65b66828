"""One model instance: the host's four calls, and nothing else that could kill the stub."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ge_backend.errors import (
    ConfigError,
    DeadlineExceeded,
    GeError,
    OutOfMemory,
    StateLost,
    unforeseen,
)
from ge_backend.host.backlog import Backlog, BatchServer
from ge_backend.host.codec import (
    HostRequest,
    error_response,
    read_request,
    send_response,
    write_response,
    write_responses,
)
from ge_backend.host.counters import Counters, begin_at_zero
from ge_backend.host.description import TokenizerDescription
from ge_backend.host.instance import Instance
from ge_backend.host.room import Room
from ge_backend.host.steps import Steps, nothing, sequence_of
from ge_backend.model.config.described import is_described
from ge_backend.model.config.instances import instance_number
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.settings import without_effect
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.progress import Reply
from ge_backend.serving.batching.request import Request, stacked
from ge_backend.serving.connect import tokenizer_of
from ge_backend.serving.ensemble.runner import EnsembleRunner
from ge_backend.serving.fused import open_fused, tokenizing_step
from ge_backend.serving.learning.learner import Learner
from ge_backend.serving.opening import open_model
from ge_backend.serving.sequence.sequencer import Sequencer
from ge_backend.serving.warmup.store import Store
from ge_backend.tensors import Array

__all__ = ["Backend"]

log = logging.getLogger(__name__)

# A reply before the others costs a round trip to the server (90-200 us, tested on 2.51), and it
# frees its client that much sooner; below this much waiting left it does not pay.
EARLY_REPLY_NS = 2_000_000


class Backend:
    """A model instance; lives in the stub process that Triton starts for it."""

    def __init__(
        self,
        config: ModelConfig,
        pipeline: Pipeline | EnsembleRunner,
        companions: Sequence[Learner | Counters],
        steps: Steps | None = None,
        warm_ups: int = 0,
        description: TokenizerDescription | None = None,
    ) -> None:
        self._config = config
        self._steps = steps
        self._description = description
        self._pipeline = pipeline
        self._companions = companions
        self._warm_ups = warm_ups
        self._room = Room()
        self._backlog = self._opened_backlog()

    @classmethod
    def open(cls, instance: Instance) -> Backend:
        """Load and warm up the model of an instance.

        Raises:
            GeError: the model cannot be served as configured; the host reports it at load.
        """
        given, config, recorder = instance.given, instance.config, instance.recorder
        if given.get("model_transaction_policy", {}).get("decoupled"):
            raise ConfigError(
                f"model {config.name!r}: model_transaction_policy says decoupled, and the host "
                "takes no answers of a graph then; remove it"
            )
        for note in config.notes:
            log.warning("%s", note)
        for key in without_effect(given.get("parameters", {}), text=False):
            log.warning("%s: no effect on a graph, which generates no text", key)
        if config.sequence is not None:
            number = instance_number(given, instance.name)
            config = replace(config, placement=config.placement.of_instance(number))
        sequencer = _sequencer(config)

        def lose_states() -> None:
            if sequencer is not None:
                sequencer.lose_all()

        store = Store(instance.machine.cache_dir)
        pipeline, learners = _opened(config, instance, store, lose_states)
        devices = pipeline.devices
        begin_at_zero(recorder, devices)
        counters = instance.counters(pipeline.sample_devices, device=",".join(devices))
        steps = None if sequencer is None else Steps(sequencer, recorder)
        description = _described(config) if is_described(given) else None
        return cls(config, pipeline, (*learners, counters), steps, _warm_ups(given), description)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a batch, or let it wait: one response per request, or None where one is sent."""
        queue = self._config.queue
        now_ns, timeout_us = time.monotonic_ns(), 0 if queue is None else queue.timeout_us
        if self._warm_ups:
            self._warm_ups -= 1
            return self._serve([HostRequest.of(request, now_ns, 0) for request in requests])
        host_requests = [HostRequest.of(request, now_ns, timeout_us) for request in requests]
        return (
            self._serve(host_requests)
            if self._backlog is None
            else self._backlog.put(host_requests)
        )

    def _serve(self, host_requests: Sequence[HostRequest]) -> list[Any]:
        """Answer a batch: one response per request, or None where one was sent early."""
        responses: list[Any] = [None] * len(host_requests)
        open_ = set(range(len(host_requests)))
        try:
            if self._steps is not None:  # what begins now is not among what is lost
                self._pipeline.look_for_losses()
            readable = self._read(host_requests, responses, open_)
            several = len(readable) > 1 and self._pipeline.stacks
            requests = stacked(readable) if several else readable
            for reply in self._pipeline.run(requests):
                members = reply.members or (requests[reply.request],)
                early = reply.remaining_ns > EARLY_REPLY_NS and (
                    len(open_) > len(members) or math.isinf(reply.remaining_ns)
                )
                written = (
                    [self._written(members[0], host_requests, reply, reply.outputs)]
                    if len(members) == 1
                    else self._written_rows(members, host_requests, reply)
                )
                for request, (response, error) in zip(members, written, strict=True):
                    index = request.index
                    if self._steps is not None:
                        self._steps.sequencer.settle(index, error, reply.states)
                    if early:
                        self._send(host_requests[index].request, response)
                    else:
                        responses[index] = response
                    open_.discard(index)
        except Exception as error:
            log.exception("a batch failed in an unforeseen way")
            for index in open_:
                responses[index] = self._refuse(unforeseen(error, GeError))
        finally:
            if self._steps is not None:
                self._steps.end_batch()
        return responses

    @property
    def ready(self) -> bool:
        """Whether some device can be used; the others are tried again in the background."""
        return self._pipeline.ready

    def close(self) -> None:
        """Serve what waits, end the threads beside serving, then leave the executors."""
        if self._backlog is not None:
            self._backlog.close()
        for companion in self._companions:
            companion.close()
        self._pipeline.close()

    def _opened_backlog(self) -> Backlog | None:
        """Return the model's own queue, where it has bounds."""
        policy = self._config.queue
        if policy is None:
            return None
        service = BatchServer(
            serve=self._serve, refuse=self._refuse, free_at_ns=lambda: self._pipeline.free_at_ns
        )
        return Backlog(
            service,
            self._pipeline.recorder,
            max_rows=self._config.max_batch_size,
            max_size=policy.max_size,
        )

    def _read(
        self, host_requests: Sequence[HostRequest], responses: list[Any], open_: set[int]
    ) -> list[Request]:
        """Return the requests that fit the model; the others get their error."""
        started = time.perf_counter()
        readable: list[Request] = []
        layout, steps, description = self._pipeline.layout, self._steps, self._description
        sequential = self._config.sequence is not None
        for index, host_request in enumerate(host_requests):
            request, response = host_request.request, None
            try:
                if description is not None:
                    response = description.answer(request, self._room)
                sequence: Any = sequential and response is None and sequence_of(request)
                if response is None and (sequence or not sequential):
                    read = read_request(index, host_request, layout)
                    if steps is not None:
                        steps.sequencer.admit(read, sequence, request.flags(), time.monotonic())
                    readable.append(read)
                    continue
                responses[index] = response or nothing()
            except GeError as error:
                responses[index] = self._unreadable(index, request, error)
            except Exception as error:
                log.exception("a request could not be read in an unforeseen way")
                responses[index] = self._unreadable(index, request, unforeseen(error, GeError))
            open_.discard(index)
        self._pipeline.recorder.add("ge_read_seconds_total", time.perf_counter() - started)
        return readable

    def _unreadable(self, index: int, request: Any, error: GeError) -> Any:
        """Return the response to a request that is not run."""
        if self._steps is not None:
            self._steps.skip(index, request)
        return self._refuse(error)

    def _written(
        self,
        request: Request,
        host_requests: Sequence[HostRequest],
        reply: Reply,
        outputs: Mapping[str, Array],
    ) -> tuple[Any, GeError | None]:
        """Return the response to a request, and what is wrong if it is an error."""
        error = reply.error
        if error is None:
            try:
                written = write_response(
                    request.wanted, outputs, self._pipeline.layout, self._room, reply.runs
                )
            except OutOfMemory as full:
                error = full if self._steps is None else StateLost.after(full)
            else:
                return written, None
        elif isinstance(error, DeadlineExceeded):
            error = host_requests[request.index].too_late(error)
        return self._refuse(error), error

    def _written_rows(
        self, members: Sequence[Request], host_requests: Sequence[HostRequest], reply: Reply
    ) -> list[tuple[Any, GeError | None]]:
        """As `_written`, for each of those whose rows a reply has."""
        outputs = reply.outputs
        if reply.error is None:
            with contextlib.suppress(OutOfMemory):  # some may have room by themselves
                every = write_responses(
                    members[0].wanted, outputs, self._pipeline.layout, self._room, len(members)
                )
                return [(response, None) for response in every]
        return [
            self._written(
                request, host_requests, reply, {n: a[row : row + 1] for n, a in outputs.items()}
            )
            for row, request in enumerate(members)
        ]

    def _send(self, request: Any, response: Any) -> None:
        """Send the response before the rest of its batch is done."""
        if send_response(request, response, self._pipeline.recorder):
            self._pipeline.recorder.add("ge_early_replies_total")

    def _refuse(self, error: GeError) -> Any:
        self._pipeline.recorder.add("ge_request_failures_total", status=error.status.value)
        return error_response(error)


def _opened(
    config: ModelConfig, instance: Instance, store: Store, on_states_lost: Callable[[], None]
) -> tuple[Pipeline | EnsembleRunner, list[Learner]]:
    """Return what runs the model, a graph or an ensemble's, and who learns its buckets."""
    recorder, on_restart = instance.recorder, instance.note_restart
    if config.fuse:
        return open_fused(config, recorder, store, on_restart=on_restart)
    pipeline, learner = open_model(
        config, recorder, store, on_restart=on_restart, on_states_lost=on_states_lost
    )
    return pipeline, [learner]


def _described(config: ModelConfig) -> TokenizerDescription | None:
    """Return what a model says of the tokenizer that reads its texts; None where it has none."""
    reading = tokenizing_step(config) if config.fuse else config
    path = None if reading is None else tokenizer_of(reading)
    if reading is None or path is None:
        return None
    return TokenizerDescription(path, reading.options)


def _warm_ups(given: Mapping[str, Any]) -> int:
    """Return how many batches of `model_warmup` come before anything else.

    They know no bounds: an error among the answers to several can end this host, most often where
    it comes from a sender (tested on 2.51).
    """
    return sum(int(sample.get("count", 0)) or 1 for sample in given.get("model_warmup", []))


def _sequencer(config: ModelConfig) -> Sequencer | None:
    """Return what gives sequences their slots, where they have states."""
    batching = config.sequence
    return Sequencer(batching) if batching is not None and batching.states else None
