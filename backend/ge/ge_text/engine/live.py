"""The requests of an engine from their coming to their end, and what their clients are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from ge_backend.errors import DeadlineExceeded, GeError, InvalidRequest
from ge_text.engine.admission import LengthForecast
from ge_text.engine.beams import BeamGroup, BeamPath
from ge_text.engine.figures import Tally
from ge_text.engine.intake import Arrived
from ge_text.engine.queue import service_key
from ge_text.engine.runner import DrawnToken
from ge_text.engine.scheduler import Changes
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
    """Requests by id; what their sequences become is returned. Not for several threads.

    Args:
        forecast: learns the lengths of those that end by themselves.
        eos: the model's ends of text.
        on_end: is called with the id of a request when its last sample has ended.
    """

    def __init__(
        self,
        forecast: LengthForecast,
        settings: EngineSettings,
        eos: tuple[int, ...],
        tally: Tally,
        on_end: Callable[[str], None],
    ) -> None:
        self._on_end = on_end
        self._forecast = forecast
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

    def add(self, arrived: Arrived) -> Changes:
        """Let a request's first sample wait; the others follow when its prompt is computed."""
        live = _Live(arrived)
        request = arrived.request
        self._by_id[request.id] = live
        (sample, given), *live.followers = request.samples()
        first = self._start(live, sample, given, None)
        self._tally.add("prompt_tokens", len(request.prompt))
        if request.timeout_s is not None:
            entry = (arrived.at_s + request.timeout_s, next(self._numbers), live)
            heappush(self._deadlines, entry)
        return Changes(began=(first,))

    def take(self, drawn: DrawnToken, now_s: float) -> Changes:
        """Give a sequence its token and tell its client, of the end too if it is one.

        A token behind the end of its sequence is dropped.
        """
        sequence = drawn.sequence
        if sequence.state is SequenceState.FINISHED:
            return Changes()
        live = self._by_id[sequence.request.id]
        if live.beams is not None:
            changes = live.beams.take(drawn)
            best = live.beams.best
            return changes if best is None else self._answer(live, best, now_s)
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
            self._forecast.observe(sequence)
            self._tally.add(finish.value)
            live.sequences.remove(sequence)
        began = self._follow(live, sequence) if live.followers else ()
        if not live.sequences:
            self._close(live, now_s)
        return Changes(ended=(sequence,) if finish else (), began=began)

    def fail(self, sequence: Sequence, error: GeError, now_s: float) -> Changes:
        """End a sample's request with an error: its client waits for none of the others then."""
        if sequence.request.id not in self:
            return Changes()
        return self.end(sequence.request.id, Finish.ERROR, error, now_s)

    def end(self, name: str, finish: Finish, error: GeError, now_s: float) -> Changes:
        """End a request with all of its samples."""
        live = self._by_id[name]
        samples = [one.sample for one in live.sequences] + [sample for sample, _ in live.followers]
        if live.beams is not None:
            samples = list(range(live.arrived.request.parameters.n))
        ended = tuple(live.sequences)
        self._close(live, now_s)
        for sample in samples:
            self._tally.add(finish.value)
            live.arrived.sink(Update(id=name, sample=sample, finish=finish, error=error))
        return Changes(ended=ended)

    def end_late(self, now_s: float) -> list[Changes]:
        """End those whose time has passed."""
        changes: list[Changes] = []
        if len(self._deadlines) > 2 * len(self._by_id) + SPARE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if self._is_live(entry[2])]
            heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, _, live = heappop(self._deadlines)
            if self._is_live(live):
                request = live.arrived.request
                error = DeadlineExceeded.within(request.timeout_s or 0.0)
                changes.append(self.end(request.id, Finish.ERROR, error, now_s))
        return changes

    def _is_live(self, live: _Live) -> bool:
        return self._by_id.get(live.arrived.request.id) is live

    def _start(
        self, live: _Live, sample: int, given: tuple[int, ...], leader: Sequence | None
    ) -> Sequence:
        arrived = live.arrived
        sequence = make_sequence(
            arrived.request,
            sample,
            given=given,
            key=service_key(self._settings, arrived, next(self._numbers), self._forecast),
            max_output=arrived.max_output,
            eos=self._eos,
        )
        sequence.leader = leader
        live.sequences.append(sequence)
        if arrived.request.parameters.beam_width > 1:
            live.beams = BeamGroup(sequence)
            live.sequences = live.beams.sequences
        return sequence

    def _follow(self, live: _Live, leader: Sequence) -> list[Sequence]:
        """Return the samples that begin now, since they waited for this one."""
        followers, live.followers = live.followers, []
        return [self._start(live, sample, given, leader) for sample, given in followers]

    def _close(self, live: _Live, now_s: float) -> None:
        """Forget a request of which nothing goes on; its beams forget each other."""
        live.sequences.clear()
        self._tally.observe("latency", now_s - live.arrived.at_s)
        del self._by_id[live.arrived.request.id]
        self._on_end(live.arrived.request.id)

    def _answer(self, live: _Live, best: Many[BeamPath], now_s: float) -> Changes:
        """Tell the client the best texts of a beam search that is over."""
        request = live.arrived.request
        if len(best) < request.parameters.n:
            error = InvalidRequest(
                f"the beam search found {len(best)} whole texts, and n is {request.parameters.n}; "
                "ask for fewer, or for fewer stop_token_ids"
            )
            return self.end(request.id, Finish.ERROR, error, now_s)
        ended = tuple(live.sequences)
        ends, found = ended[0].ends, ended[0].found
        self._close(live, now_s)
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
        return Changes(ended=ended)

    def _count(self, sequence: Sequence, arrived_s: float, now_s: float) -> None:
        self._tally.add("generated_tokens")
        if sequence.last_s:
            self._tally.observe("inter_token", now_s - sequence.last_s)
        elif sequence.num_output == 1:  # else its first one was drawn elsewhere
            self._tally.observe("first_token", now_s - arrived_s)
        sequence.last_s = now_s
