"""The requests of an engine from their coming to their end, and what their clients are told.

Any thread may `submit` and `cancel`: that leaves a note, and waits for no step. All else is for the
thread that steps, which takes the notes with `receive`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import count

from ge_backend.errors import Cancelled, DeadlineExceeded, GeError, InvalidRequest, QueueFull
from ge_text.engine.beams import BeamGroup, BeamPath
from ge_text.engine.figures import Tally
from ge_text.engine.queue import key_offset_s
from ge_text.engine.runner import DrawnToken
from ge_text.engine.scheduler import Scheduler
from ge_text.engine.sequence import GenerationRequest, Sequence, SequenceState, make_sequence
from ge_text.engine.settings import EngineSettings
from ge_text.engine.update import Finish, Sink, Update

__all__ = ["LiveRequest", "LiveRequests"]


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request that was checked and has not ended.

    Attributes:
        at_s: when it came.
        max_output: tokens that each of its samples may have.
        sequences: samples in the making.
        followers: samples that begin when the first one's prompt is computed, whose blocks they
            then share: index and tokens so far.
        beams: where it is a beam search: `sequences` are its beams.
    """

    request: GenerationRequest
    sink: Sink
    at_s: float
    max_output: int
    sequences: list[Sequence] = field(default_factory=list)
    followers: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    beams: BeamGroup | None = None


class LiveRequests:
    """Requests by id.

    Args:
        scheduler: gets their sequences; its forecast learns the lengths of those that end by
            themselves.
        eos: the model's ends of text.

    Attributes:
        by_id: those that have not ended, those that begin with the next step included.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settings: EngineSettings,
        eos: tuple[int, ...],
        tally: Tally,
    ) -> None:
        self._scheduler = scheduler
        self._offset_s = key_offset_s(settings, scheduler.forecast)
        self._max_waiting = settings.max_waiting_requests
        self._eos = eos
        self._tally = tally
        self.by_id: dict[str, LiveRequest] = {}
        self._notes: list[tuple[LiveRequest, bool]] = []  # and whether it is to be cancelled
        self._lock = threading.Lock()  # of both
        self._deadlines: dict[str, float] = {}  # by id, of those that have begun with a time limit
        self._numbers = count()

    def submit(self, live: LiveRequest) -> None:
        """Have a request begin with the next step.

        Raises:
            QueueFull: too many wait, and the request was not taken on before.
            InvalidRequest: one that has not ended has the same id.
        """
        name, waiting = live.request.id, self._scheduler.num_new_requests
        with self._lock:
            waiting += sum(not cancelled for _, cancelled in self._notes)
            if waiting >= self._max_waiting and not live.request.again:
                raise QueueFull(
                    f"{waiting} requests wait for this model, which is as many as may "
                    "(max_waiting_requests); try again later"
                )
            if name in self.by_id:
                raise InvalidRequest(f"request {name!r} is being served; take another id")
            self.by_id[name] = live
            self._notes.append((live, False))

    def cancel(self, name: str) -> None:
        """Have a request end with the next step, if it has not ended by then."""
        with self._lock:
            if name in self.by_id:
                self._notes.append((self.by_id[name], True))

    def receive(self, now_s: float) -> None:
        """Let those begin that have come; end those that are cancelled, and those that are late."""
        with self._lock:
            notes, self._notes = self._notes, []
        for live, cancelled in notes:
            request = live.request
            if cancelled:
                if self.by_id.get(request.id) is live:
                    self._end(live, Finish.CANCELLED, Cancelled.by_client(), now_s)
                continue
            # The other samples follow when this one's prompt is computed.
            (sample, given), *live.followers = request.samples()
            self._start(live, sample, given, None)
            self._tally.add("prompt_tokens", len(request.prompt))
            if request.timeout_s is not None:
                self._deadlines[request.id] = live.at_s + request.timeout_s
        late = [name for name, until_s in self._deadlines.items() if until_s <= now_s]
        for live in map(self.by_id.__getitem__, late):
            error = DeadlineExceeded.within(live.request.timeout_s or 0.0)
            self._end(live, Finish.ERROR, error, now_s)

    def end_all(self, error: GeError, now_s: float) -> None:
        """End all that have begun with an error."""
        with self._lock:
            begun = [live for live in self.by_id.values() if live.sequences]
        for live in begun:
            self._end(live, Finish.ERROR, error, now_s)

    def take(self, drawn: DrawnToken, now_s: float) -> None:
        """Give a sequence its token and tell its client, of the end too if it is one.

        A token behind the end of its sequence is dropped.
        """
        sequence = drawn.sequence
        if sequence.state is SequenceState.FINISHED:
            return
        live = self.by_id[sequence.request.id]
        if live.beams is not None:
            live.beams.take(drawn)
            if live.beams.best is not None:
                self._answer(live, live.beams.best, now_s)
            return
        sequence.append(drawn.token)
        self._count(sequence, live.at_s, now_s)
        finish = sequence.finish()
        update = Update(
            id=sequence.request.id,
            sample=sequence.sample,
            tokens=(drawn.token,),
            logprobs=(drawn.logprob,),
            ranks=(drawn.rank,),
            top=(drawn.top,),
            finish=finish,
            found=sequence.found,
        )
        if live.sink(update):
            finish = Finish.STOP
        if finish:
            self._scheduler.forecast.observe(sequence)
            self._tally.add(finish.value)
            live.sequences.remove(sequence)
            self._scheduler.remove(sequence)
        if live.followers:
            followers, live.followers = live.followers, []  # they waited for this one
            for sample, given in followers:
                self._start(live, sample, given, sequence)
        if not live.sequences:
            self._close(live, now_s)

    def fail(self, sequence: Sequence, error: GeError, now_s: float) -> None:
        """End a sample's request with an error: its client waits for none of the others then."""
        if sequence.state is not SequenceState.FINISHED:
            live = self.by_id[sequence.request.id]
            self._end(live, Finish.ERROR, error, now_s, failed=True)

    def _end(
        self,
        live: LiveRequest,
        finish: Finish,
        error: GeError,
        now_s: float,
        *,
        failed: bool = False,
    ) -> None:
        """End a request with all of its samples; `failed`: see `Scheduler.remove`."""
        samples = [one.sample for one in live.sequences] + [sample for sample, _ in live.followers]
        if live.beams is not None:
            samples = list(range(live.request.parameters.n))
        for sequence in live.sequences:
            self._scheduler.remove(sequence, failed=failed)
        self._close(live, now_s)
        for sample in samples:
            self._tally.add(finish.value)
            live.sink(Update(id=live.request.id, sample=sample, finish=finish, error=error))

    def _start(
        self, live: LiveRequest, sample: int, given: tuple[int, ...], leader: Sequence | None
    ) -> None:
        """Let a sample wait for its turn."""
        request = live.request
        later_s = self._offset_s(request, live.max_output)
        sequence = make_sequence(
            request,
            sample,
            given=given,
            key=(live.at_s + later_s, next(self._numbers)),
            max_output=live.max_output,
            eos=self._eos,
        )
        sequence.leader = leader
        live.sequences.append(sequence)
        if request.parameters.beam_width > 1:
            live.beams = BeamGroup(sequence, self._scheduler)
            live.sequences = live.beams.sequences
        self._scheduler.add(sequence)

    def _close(self, live: LiveRequest, now_s: float) -> None:
        """Forget a request of which nothing goes on; its beams forget each other."""
        live.sequences.clear()
        self._tally.observe("latency", now_s - live.at_s)
        self._deadlines.pop(live.request.id, None)
        with self._lock:
            del self.by_id[live.request.id]

    def _answer(self, live: LiveRequest, best: Many[BeamPath], now_s: float) -> None:
        """Tell the client the best texts of a beam search that is over."""
        request = live.request
        if len(best) < request.parameters.n:
            error = InvalidRequest(
                f"the beam search found {len(best)} whole texts, and n is {request.parameters.n}; "
                "ask for fewer, or for fewer stop_token_ids"
            )
            self._end(live, Finish.ERROR, error, now_s)
            return
        ends, found = live.sequences[0].ends, live.sequences[0].found
        for sequence in live.sequences:
            self._scheduler.remove(sequence)
        self._close(live, now_s)
        for sample, path in enumerate(best[: request.parameters.n]):
            finish = Finish.STOP if path.tokens[-1] in ends else Finish.LENGTH
            self._tally.add("generated_tokens", len(path.tokens))
            self._tally.add(finish.value)
            live.sink(
                Update(
                    id=request.id,
                    sample=sample,
                    tokens=path.tokens,
                    logprobs=path.logprobs,
                    ranks=(0,) * len(path.tokens),
                    top=(None,) * len(path.tokens),
                    finish=finish,
                    found=found,
                )
            )

    def _count(self, sequence: Sequence, arrived_s: float, now_s: float) -> None:
        self._tally.add("generated_tokens")
        if sequence.last_s:
            self._tally.observe("inter_token", now_s - sequence.last_s)
        elif sequence.num_output == 1:  # else its first one was drawn elsewhere
            self._tally.observe("first_token", now_s - arrived_s)
        sequence.last_s = now_s
