"""In an engine's place: requests go to a model that plans its own steps, which tells of tokens.

A request of several samples is as many texts there. A text that another engine has begun goes on
behind its tokens, as if they had been in the prompt: the penalties for presence and frequency do
not see those as output, and random numbers begin anew. One that has to keep to a structure does
not go on: the model would begin the structure anew in the middle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from ge_backend.errors import Cancelled, ExecutorLost, GeError, InvalidRequest
from ge_text.engine.figures import Figures, Tally
from ge_text.engine.plan import StepPlan
from ge_text.engine.sequence import GenerationRequest, Limits
from ge_text.engine.update import Finish, Sink, Update
from ge_text.models.scheduled import EngineRequest, ScheduledModel, TokenDelta

__all__ = ["Delegate"]


@dataclass(slots=True)
class _Text:
    """One sample under way."""

    id: str
    sample: int
    sink: Sink
    arrived_s: float
    told_s: float | None = None


@dataclass(slots=True)
class Delegate:
    """Has the methods of `Engine`; it never wants a step.

    Args:
        model: stays the caller's to close.
        clock: seconds, ever forward.

    Attributes:
        limits: what one sequence may be.
    """

    model: ScheduledModel
    clock: Callable[[], float]
    limits: Limits = field(init=False)
    has_work: bool = field(init=False, default=False)
    _tally: Tally = field(init=False, default_factory=Tally)
    _texts: dict[str, _Text] = field(init=False, default_factory=dict)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        model = self.model
        self.limits = Limits(
            vocabulary=model.vocabulary,
            max_positions=model.max_positions,
            cache_tokens=model.cache_blocks * model.block_size,
        )

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Take a request on; `sink` gets its updates. Any thread.

        Raises:
            InvalidRequest: it can never be served; names the limit.
            ExecutorLost: it cannot go on behind the tokens that another engine has drawn.
        """
        if request.parameters.beam_width > 1:
            raise InvalidRequest(
                f"beam_width is {request.parameters.beam_width}; this model's own scheduler has no "
                "beam search; leave it out"
            )
        most = self.limits.output_tokens(request)
        names = [(f"{request.id}/{i}", i, given) for i, given in request.samples()]
        if request.parameters.structure and any(given for _, _, given in names):
            raise ExecutorLost(
                "the executor died amid an answer in a given form, which vLLM cannot go on with; "
                "send the request again"
            )
        with self._lock:
            if any(name in self._texts for name, _, _ in names):
                raise InvalidRequest(f"request {request.id} is under way already")
            for name, sample, _ in names:
                self._texts[name] = _Text(request.id, sample, sink, self.clock())
        self._tally.add("prompt_tokens", len(request.prompt))
        for name, sample, given in names:
            ask = _engine_request(request, name, sample, given, most, self.model.eos)
            with self._lock:
                if name in self._texts:  # else another sample has failed meanwhile
                    self.model.begin(ask, partial(self._take, name))

    def cancel(self, name: str) -> None:
        """End a request that has not ended yet. Any thread."""
        self._end_all(name, Finish.CANCELLED, Cancelled.by_client())

    def step(self) -> StepPlan:
        """Return that nothing was done: the model steps by itself."""
        return StepPlan()

    def abort(self, error: GeError) -> None:
        """End all requests with an error."""
        for key in list(self._texts):
            self._end(key, Finish.ERROR, error)

    def figures(self) -> Figures:
        """Return what it has done and has. Any thread."""
        levels, blocks = self.model.levels(), self.model.cache_blocks
        used = round(levels.cache_used * blocks)
        return Figures(
            waiting=levels.waiting,
            running=levels.running,
            swapped=0,
            blocks_used=used,
            blocks_free=blocks - used,
            blocks_kept=0,
            adapters=0,
            adapter_bytes=0,
            counts={**self._tally.counts, "recomputed": levels.preempted},
            buckets={},
            histograms=self._tally.pictures(),
        )

    def _take(self, name: str, delta: TokenDelta) -> None:
        """Pass on what the model tells; called by its thread.

        An error ends all samples of a request: its client waits for none of the others then.
        """
        with self._lock:
            text = self._texts.get(name)
            if text is not None and delta.finish:
                del self._texts[name]
        if text is None:
            return
        if delta.error is not None:
            self._end_all(text.id, Finish.ERROR, delta.error)
            return
        self._measure(text, len(delta.tokens))
        update = Update(
            id=text.id,
            sample=text.sample,
            tokens=delta.tokens,
            logprobs=delta.logprobs,
            ranks=delta.ranks,
            top=delta.top,
            finish=Finish(delta.finish) if delta.finish else None,
        )
        stopped = text.sink(update)
        if delta.finish:
            self._count_end(text, Finish.STOP if stopped else Finish(delta.finish))
        elif stopped and self._forget(name) is not None:
            self.model.end(name)
            self._count_end(text, Finish.STOP)

    def _end_all(self, name: str, finish: Finish, error: GeError) -> None:
        """End those samples of a request that have not ended yet."""
        with self._lock:
            under_way = [key for key, text in self._texts.items() if text.id == name]
        for key in under_way:
            self._end(key, finish, error)

    def _end(self, name: str, finish: Finish, error: GeError) -> None:
        text = self._forget(name)
        if text is None:
            return
        self.model.end(name)
        self._count_end(text, finish)
        text.sink(Update(id=text.id, sample=text.sample, finish=finish, error=error))

    def _forget(self, name: str) -> _Text | None:
        with self._lock:
            return self._texts.pop(name, None)

    def _measure(self, text: _Text, tokens: int) -> None:
        now_s = self.clock()
        if text.told_s is None:
            self._tally.observe("first_token", now_s - text.arrived_s)
        else:
            self._tally.observe("inter_token", now_s - text.told_s)
        text.told_s = now_s
        self._tally.add("generated_tokens", tokens)

    def _count_end(self, text: _Text, finish: Finish) -> None:
        self._tally.add(finish.value)
        self._tally.observe("latency", self.clock() - text.arrived_s)


def _engine_request(
    request: GenerationRequest,
    name: str,
    sample: int,
    given: tuple[int, ...],
    most: int,
    eos: tuple[int, ...],
) -> EngineRequest:
    parameters = request.parameters
    # A structure alone says when its text may end, as in our own engine.
    free = parameters.structure is None
    # Behind tokens that came before, the same seed would draw the same random numbers again.
    seed = parameters.sampling.seed + sample + (len(given) << 32)
    return EngineRequest(
        name=name,
        prompt=request.prompt + given,
        sampling=replace(parameters.sampling, seed=seed % 2**63),
        seeded=parameters.seeded,
        max_tokens=most - len(given),
        min_tokens=max(0, parameters.min_tokens - len(given)) if free else 0,
        ends=parameters.stop_token_ids + (() if parameters.ignore_eos and free else eos),
        priority=parameters.priority,
        prefix_cache=parameters.prefix_cache,
        cache_salt=parameters.cache_salt,
        structure=parameters.structure,
        timeout_s=request.timeout_s,
    )
