"""The service that generates text: one engine per checkpoint, whatever the number of its clients.

A step of the engine is a job for one of the device's lanes, like any run: it waits its turn, leases
its scratch memory, counts in the timeline, and between two steps other models run. Text becomes
tokens where it arrives, and tokens become text where they are drawn, so that a stop text ends its
sample within a step.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ge_backend.errors import GeError, InvalidRequest
from ge_backend.executor.protocol.messages import Ok, OpenService, Post
from ge_backend.executor.server.lanes import result_or_error
from ge_backend.executor.server.queue import Grant, Job
from ge_backend.executor.server.services import Client, ServiceContext
from ge_backend.executor.server.timeline import RunLabel
from ge_text.engine.figures import Figures
from ge_text.engine.parameters import Parameters, parse_parameters
from ge_text.engine.sequence import GenerationRequest
from ge_text.models.base import Tokenizer
from ge_text.models.structure import Guide, Structure
from ge_text.protocol import (
    Abort,
    Parts,
    RequestFailed,
    ServiceSpec,
    StatsReply,
    StatsRequest,
    Submit,
)
from ge_text.service.answer import Outbox, TextAnswer
from ge_text.service.engine import open_engine

__all__ = ["GenerationService"]

log = logging.getLogger(__name__)

# Of an engine's figures, those that are as they are now.
LEVELS = (
    *("waiting", "running", "swapped", "blocks_used", "blocks_free", "blocks_kept"),
    *("adapters", "adapter_bytes"),
)


class GenerationService:
    """See the module; a `Service`.

    Args:
        context: of the executor.
        opened: its key is a `ServiceSpec` as JSON.

    Raises:
        GeError: the checkpoint cannot be loaded.
    """

    def __init__(self, context: ServiceContext, opened: OpenService) -> None:
        self._spec = ServiceSpec.of(opened.key)
        self._context = context
        self._opened = open_engine(self._spec, context)
        self._engine = self._opened.engine
        self._holder = f"{self._spec.served_as} #{id(self)}"
        self._take_place()
        self._last_figures = self._engine.figures()
        self._joined = itertools.count()
        self._stepping = False
        self._closed = False
        self._step_ns = 0  # what the latest step took
        self._expected_ns = 0  # what the one that is scheduled is expected to
        self._lock = threading.Lock()

    def join(self, client: Client) -> _Member:
        """Take on a client, which need not know anything; see `Service`."""
        return _Member(self, client, next(self._joined))

    def submit(self, member: _Member, asked: Submit) -> None:
        """Take on a request; what is wrong with it is told to its sender alone."""
        error = result_or_error(lambda: self._submit(member, asked), self._context.on_fault)
        if error is not None:
            name, text = type(error).__name__, str(error)
            member.outbox.say(RequestFailed(number=asked.number, error=name, message=text))

    def cancel(self, *names: str) -> None:
        """Drop requests, by what the engine calls them."""
        for name in names:
            self._engine.cancel(name)
        self._schedule_step()

    def stats(self) -> StatsReply:
        """Return what was counted since a stub asked last, and the levels of now."""
        with self._lock:
            before, self._last_figures = self._last_figures, self._engine.figures()
            return _difference(before, self._last_figures, self._opened.name)

    def close(self) -> None:
        """Free the models once no step runs, nor will: what was asked for has been dropped."""
        while not self._rests():
            self._context.lanes.cancel(self)  # or we wait for the bytes that a step waits for
            time.sleep(0.001)
        self._context.pool.remove(self._holder)
        self._close_models()

    def _rests(self) -> bool:
        """Whether there is nothing to do any more; then no step begins from now on."""
        with self._lock:
            self._closed = not (self._stepping or self._engine.has_work)
            return self._closed

    def _take_place(self) -> None:
        """Get a place in the workspace pool: every step leases its bytes, as runs do theirs.

        Raises:
            OutOfMemory: the pool is smaller than the largest step; the model is closed.
        """
        pool = self._context.pool
        pool.workspace(self._holder)
        try:
            pool.place(self._holder, self._opened.scratch_bytes, bound=False)
        except GeError:
            pool.remove(self._holder)
            self._close_models()
            raise

    def _close_models(self) -> None:
        for model in self._opened.models:
            model.close()

    def _submit(self, member: _Member, asked: Submit) -> None:
        if asked.number in member.names:
            raise InvalidRequest(f"request {asked.number} is being served; take another number")
        parameters = self._parameters(asked)
        prompt = self._prompt(asked, special=parameters.add_special_tokens)
        guide = self._guide(parameters.structure) if parameters.structure else None
        request = GenerationRequest(
            id=f"{member.place}.{asked.number}",
            prompt=prompt,
            parameters=_measured(parameters) if asked.cumulative else parameters,
            timeout_s=asked.timeout_s or None,
            generated=tuple(None if s.ended else s.ids for s in asked.samples),
            guide=guide,
            adapter=self._opened.find_adapter(name) if (name := parameters.lora_name) else None,
            again=asked.again,
        )
        warnings = guide.warnings if guide else ()
        text = self._opened.tokenizer, self._opened.special, prompt, warnings
        forget = partial(member.names.pop, asked.number, "")
        interval = self._opened.stream_interval
        answer = TextAnswer(asked, parameters, member.outbox, *text, interval, on_end=forget)
        member.names[asked.number] = request.id
        try:
            self._engine.submit(request, answer.take)
        except GeError:
            forget()
            raise
        self._schedule_step()

    def _parameters(self, asked: Submit) -> Parameters:
        try:
            given = json.loads(asked.parameters)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"sampling_parameters is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise InvalidRequest(f"sampling_parameters is {given!r}; expected a JSON object")
        tokenizer = self._opened.tokenizer
        parameters = parse_parameters(
            given,
            defaults=self._opened.sampling,
            seed=asked.seed,
            encode=None if tokenizer is None else lambda text: _plain(tokenizer, text),
        )
        if parameters.stop and tokenizer is None:
            raise InvalidRequest(
                "stop needs a tokenizer, and this model has none; say stop_token_ids instead"
            )
        return parameters

    def _guide(self, structure: Structure) -> Guide | None:
        """Return the compiled structure; made here, where no step waits for it."""
        compile_structure = self._opened.compile_structure
        if compile_structure is None:
            raise InvalidRequest(
                f"{structure.kind.value} needs a tokenizer, and the checkpoint has no "
                "tokenizer.json; leave it out or put the file there"
            )
        return compile_structure(structure)

    def _prompt(self, asked: Submit, *, special: bool) -> tuple[int, ...]:
        if asked.ids:
            # Here, too: a tokenizer takes no other numbers.
            self._engine.limits.check_tokens("prompt", asked.ids)
            return asked.ids
        tokenizer = self._opened.tokenizer
        if tokenizer is None:
            raise InvalidRequest(
                "text_input needs a tokenizer, and the checkpoint has no tokenizer.json; send "
                "input_ids or put the file there"
            )
        return tuple(map(int, tokenizer.encode(asked.text, special=special)))

    def _schedule_step(self) -> None:
        """See that a lane steps the engine while there is something to do."""
        with self._lock:
            if self._closed or self._stepping or not self._engine.has_work:
                return
            self._stepping = True
        self._expected_ns = self._step_ns
        self._context.outstanding.change(self._expected_ns)
        self._context.lanes.submit(
            Job(
                work=self._step,
                drop=self._dropped,
                holder=self._holder if self._context.pool.size_bytes else "",
                priority=self._spec.priority,
                owner=self,
                model=self._spec.served_as,
                cost_ns=self._expected_ns,
            )
        )

    def _step(self, grant: Grant) -> Callable[[], None]:
        """Bring the engine a step further; whatever becomes of that, another one may follow."""
        started_ns = time.monotonic_ns()
        plan = result_or_error(self._engine.step, self._context.on_fault)
        if isinstance(plan, GeError):
            self._abort(plan)
            label, error = RunLabel(self._spec.served_as), type(plan).__name__
        else:
            rows = len(plan.spans)
            label, error = RunLabel(self._spec.served_as, (rows, plan.num_tokens), rows), ""
        self._context.timeline.add(label, grant, started_ns, error)
        self._step_ns = time.monotonic_ns() - started_ns
        return self._end_step

    def _abort(self, error: GeError) -> None:
        """End all texts; where not even that can be, the executor ends."""
        failure = result_or_error(lambda: self._engine.abort(error), self._context.on_fault)
        if isinstance(failure, GeError):
            log.critical(
                "the engine of %s cannot end its texts; the executor ends", self._spec.served_as
            )
            self._context.on_fault()

    def _end_step(self) -> None:
        self._context.outstanding.change(-self._expected_ns)
        with self._lock:
            self._stepping = False
        self._schedule_step()

    def _dropped(self, error: GeError) -> None:
        """End all texts: there is no step for them."""
        self._abort(error)
        self._end_step()


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return a text's tokens as they stand within another."""
    return [int(token) for token in tokenizer.encode(text, special=False)]


def _measured(parameters: Parameters) -> Parameters:
    """Return parameters for which the engine tells the log-probability of each token."""
    if parameters.sampling.logprobs is not None:
        return parameters
    return replace(parameters, sampling=replace(parameters.sampling, logprobs=0))


class _Member:
    """A client: what comes from it and goes to it.

    Attributes:
        answer: what it is told first.
        outbox: what it is told then.
        place: its number among the clients, which is part of the names of its requests.
        names: what the engine calls its requests, by their numbers.
    """

    def __init__(self, service: GenerationService, client: Client, place: int) -> None:
        self.answer = Ok(id=client.opened.id)
        self.outbox = Outbox(client)
        self.place = place
        self.names: dict[int, str] = {}
        self._service, self._parts = service, Parts()

    def receive(self, post: Post) -> None:
        """Take a post; one that does not read what it is told has to wait with what it asks."""
        self.outbox.wait_for_room()
        message = self._parts.take(post.body)
        if isinstance(message, Submit):
            self._service.submit(self, message)
        elif isinstance(message, Abort):
            if (name := self.names.get(message.number)) is not None:
                self._service.cancel(name)
        elif isinstance(message, StatsRequest):
            self.outbox.say(self._service.stats())

    def leave(self) -> None:
        """Drop what the client has asked for."""
        self.outbox.close()
        self._service.cancel(*self.names.values())


def _difference(before: Figures, now: Figures, engine: str) -> StatsReply:
    histograms = {
        name: seen.since(before.histograms[name]) for name, seen in now.histograms.items()
    }
    return StatsReply(
        engine=engine,
        levels={name: float(getattr(now, name)) for name in LEVELS},
        counts={name: count - before.counts[name] for name, count in now.counts.items()},
        buckets={
            "x".join(map(str, bucket)): grown
            for bucket, count in now.buckets.items()
            if (grown := count - before.buckets.get(bucket, 0))
        },
        histograms=histograms,
    )
