"""The requests of an engine from their coming to their end, and what their clients are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from ge_backend.errors import DeadlineExceeded, GeError, InvalidRequest
from ge_text.engine.beams import BeamGroup, BeamPath
from ge_text.engine.figures import Tally
from ge_text.engine.intake import Arrived
from ge_text.engine.queue import service_key
from ge_text.engine.runner import DrawnToken
from ge_text.engine.scheduler import Scheduler
from ge_text.engine.sequence import Finish, Sequence, SequenceState, make_sequence
from ge_text.engine.settings import EngineSettings
from ge_text.engine.update import Update

__all__ = ["LiveRequests"]

SPARE_DEADLINES = 64  # of requests that have ended, beside as many as there are live ones


@dataclass(slots=True, eq=False)
class _Live:
    """A request that has not ended.

    Attributes:
        sequences: samples in the making.
        followers: samples that begin when the first one's prompt is computed, whose blocks they
            then share: index and tokens so far.
        beams: where it is a beam search: `sequences` are its beams.
    """

    arrived: Arrived
    sequences: list[Sequence] = field(default_factory=list)
    followers: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    beams: BeamGroup | None = None


class LiveRequests:
    """Requests by id. Not for several threads.

    Args:
        scheduler: gets their sequences, and loses them.
        eos: the model's ends of text.
        on_end: is called with the id of a request when its last sample has ended.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        settings: EngineSettings,
        eos: tuple[int, ...],
        tally: Tally,
        on_end: Callable[[str], None],
    ) -> None:
        self._on_end = on_end
        self._scheduler = scheduler
        self._settings = settings
        self._eos = eos
        self._tally = tally
        self._by_id: dict[str, _Live] = {}
        self._deadlines: list[tuple[float, int, _Live]] = []
        self._numbers = count()

    def __contains__(self, name: str) -> bool:
        """Return whether a request has not ended."""
        return name in self._by_id

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of all; they may end meanwhile."""
        return iter(list(self._by_id))

    def add(self, arrived: Arrived) -> None:
        """Let a request's first sample wait; the others follow when its prompt is computed."""
        live = _Live(arrived)
        request = arrived.request
        self._by_id[request.id] = live
        (sample, given), *live.followers = request.samples()
        self._start(live, sample, given, None)
        self._tally.add("prompt_tokens", len(request.prompt))
        if request.timeout_s is not None:
            entry = (arrived.at_s + request.timeout_s, next(self._numbers), live)
            heappush(self._deadlines, entry)

    def take(self, drawn: DrawnToken, now_s: float) -> None:
        """Give a sequence its token and tell its client, of the end too if it is one.

        A token behind the end of its sequence is nobody's.
        """
        sequence = drawn.sequence
        if sequence.state is SequenceState.FINISHED:
            return
        live = self._by_id[sequence.request.id]
        if live.beams is not None:
            best = live.beams.take(drawn)
            if best is not None:
                self._answer(live, best, now_s)
            return
        sequence.append(drawn.token)
        self._count(sequence, live.arrived.at_s, now_s)
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
        if live.arrived.sink(update):
            finish = Finish.STOP
        if finish:
            self._scheduler.forecast.observe(sequence)
            self._tally.add(finish.value)
            self._leave(live, sequence, now_s)
        elif live.followers:
            self._follow(live, sequence)

    def fail(self, sequence: Sequence, error: GeError, now_s: float) -> None:
        """End a sample's request with an error: its client waits for none of the others then."""
        if sequence.request.id in self:
            self.end(sequence.request.id, Finish.ERROR, error, now_s, failed=True)

    def end(
        self, name: str, finish: Finish, error: GeError, now_s: float, *, failed: bool = False
    ) -> None:
        """End a request with all of its samples; what failed ones computed is not kept."""
        live = self._by_id[name]
        samples = [one.sample for one in live.sequences] + [sample for sample, _ in live.followers]
        if live.beams is not None:
            samples = list(range(live.arrived.request.parameters.n))
        live.followers.clear()
        for sequence in list(live.sequences):
            self._leave(live, sequence, now_s, failed=failed)
        for sample in samples:
            self._tally.add(finish.value)
            live.arrived.sink(Update(id=name, sample=sample, finish=finish, error=error))

    def end_late(self, now_s: float) -> None:
        """End those whose time has passed."""
        if len(self._deadlines) > 2 * len(self._by_id) + SPARE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if self._is_live(entry[2])]
            heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, _, live = heappop(self._deadlines)
            if self._is_live(live):
                request = live.arrived.request
                error = DeadlineExceeded.within(request.timeout_s or 0.0)
                self.end(request.id, Finish.ERROR, error, now_s)

    def _is_live(self, live: _Live) -> bool:
        return self._by_id.get(live.arrived.request.id) is live

    def _start(
        self, live: _Live, sample: int, given: tuple[int, ...], leader: Sequence | None
    ) -> None:
        arrived = live.arrived
        sequence = make_sequence(
            arrived.request,
            sample,
            given=given,
            key=service_key(self._settings, arrived, next(self._numbers), self._scheduler.forecast),
            max_output=arrived.max_output,
            eos=self._eos,
        )
        sequence.leader = leader
        live.sequences.append(sequence)
        if arrived.request.parameters.beam_width > 1:
            live.beams = BeamGroup(sequence, self._scheduler)
            live.sequences = live.beams.sequences
        self._scheduler.add(sequence)

    def _follow(self, live: _Live, leader: Sequence) -> None:
        """Let the samples begin that waited for this one."""
        followers, live.followers = live.followers, []
        for sample, given in followers:
            self._start(live, sample, given, leader)

    def _leave(
        self, live: _Live, sequence: Sequence, now_s: float, *, failed: bool = False
    ) -> None:
        """Free all that an ended sequence had; the request ends with its last one."""
        self._scheduler.remove(sequence, failed=failed)
        live.sequences.remove(sequence)
        self._follow(live, sequence)
        if not live.sequences:
            self._tally.observe("latency", now_s - live.arrived.at_s)
            del self._by_id[live.arrived.request.id]
            self._on_end(live.arrived.request.id)

    def _answer(self, live: _Live, best: Many[BeamPath], now_s: float) -> None:
        """Tell the client the best texts of a beam search that is over."""
        request = live.arrived.request
        if len(best) < request.parameters.n:
            error = InvalidRequest(
                f"the beam search found {len(best)} whole texts, and n is {request.parameters.n}; "
                "ask for fewer, or for fewer stop_token_ids"
            )
            self.end(request.id, Finish.ERROR, error, now_s)
            return
        ends, found = live.sequences[0].ends, live.sequences[0].found
        for sequence in list(live.sequences):
            self._leave(live, sequence, now_s)
        for sample, path in enumerate(best[: request.parameters.n]):
            finish = Finish.STOP if path.tokens[-1] in ends else Finish.LENGTH
            self._tally.add("generated_tokens", len(path.tokens))
            self._tally.add(finish.value)
            live.arrived.sink(
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
