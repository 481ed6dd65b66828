"""What clients are told: an engine's updates as text, cut at stop texts, and joined on the way."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ge_backend.errors import GeError
from ge_backend.executor.server.services import Client
from ge_text.engine.parameters import Parameters
from ge_text.engine.text import TextAssembler
from ge_text.engine.update import Finish, Update
from ge_text.models.base import Tokenizer
from ge_text.protocol import (
    MAX_BYTES,
    Delta,
    RequestFailed,
    StatsReply,
    Submit,
    TokenUpdates,
    joined,
    parts_of,
)

__all__ = ["Outbox", "TextAnswer"]

KNOWN = range(4, 24)  # how many of a prompt's last tokens a text goes on behind
WORDS = {Finish.COMPLETE: Finish.STOP.value}  # what clients know; else as they are
# Of one message; a quarter of what the other end takes, since all else stands while it is encoded.
NEWS_BYTES = MAX_BYTES // 4
# How many messages may wait that cannot be joined.
MAX_UNSAID = 1000


class Outbox:
    """A thread that posts; putting something here never waits.

    Args:
        client: gets it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._deltas: dict[tuple[int, int], list[Delta]] = {}
        self._others: list[RequestFailed | StatsReply] = []
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._post, name="outbox", daemon=True).start()

    def put(self, *deltas: Delta) -> None:
        """Say what is new of a sample, or of several, together as far as one message takes it."""
        with self._changed:
            for delta in deltas:
                self._deltas.setdefault((delta.number, delta.sample), []).append(delta)
            self._changed.notify_all()

    def say(self, message: RequestFailed | StatsReply) -> None:
        """Say something else, after all deltas that were put before."""
        with self._changed:
            self._others.append(message)
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait while much is unsaid: for the thread that takes what the client asks for."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._others) < MAX_UNSAID or self._closed)

    def close(self) -> None:
        """End the thread; what has not been posted is lost, like the client."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _post(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._deltas or self._others or self._closed)
                if self._closed:
                    return
                deltas, self._deltas = self._deltas, {}
                others, self._others = self._others, []
                self._changed.notify_all()
            for message in chain(_updates(deltas.values()), others):
                for part in parts_of(message):
                    self._client.post(part)


@dataclass(slots=True)
class _Sample:
    """One sample: its text so far, None where there is no tokenizer, and how it ended.

    What is `untold` waits for more tokens; nothing does before the first one is told.
    """

    text: TextAssembler | None
    cumulative: float = 0.0
    ended: bool = False
    begun: bool = False
    untold: list[Delta] = field(default_factory=list)


@dataclass(slots=True)
class TextAnswer:
    """The answer to one request in the making.

    Args:
        asked: the request; samples that it has already are gone through again, and send nothing.
        outbox: of its client.
        tokenizer: None where the checkpoint has none: then the text is empty.
        special: names of the tokens that are no text, by token; log-probabilities have them.
        prompt: its tokens, behind which the text goes on.
        warnings: what the request says and is not kept to.
        interval: tokens that go to the client together, but for the first.
        on_end: called once, when all of its samples have ended.
    """

    asked: Submit
    parameters: Parameters
    outbox: Outbox
    tokenizer: Tokenizer | None
    special: Mapping[int, str]
    prompt: tuple[int, ...]
    warnings: tuple[str, ...] = ()
    interval: int = 1
    on_end: Callable[[], object] = lambda: None
    _samples: list[_Sample] = field(init=False)
    _refused: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        numbers = range(self.parameters.n)
        if self.tokenizer is None:
            self._samples = [_Sample(None) for _ in numbers]
        else:
            known = _last_text(self.tokenizer, self.prompt)
            self._samples = [_Sample(self._assembler(self.tokenizer, known)) for _ in numbers]
        for sample, given in zip(self._samples, self.asked.samples, strict=False):
            sample.ended, sample.cumulative = given.ended, given.cumulative
            sample.begun = bool(given.ids)
            if sample.text is not None:
                for token in given.ids:
                    sample.text.take(token)

    def take(self, update: Update) -> bool:
        """Tell the client what is new; return whether a stop text has ended the sample.

        A sample that had ended before an executor died is not told again. A `Sink` of the engine.
        """
        if update.error is not None:
            self._refuse(update.error)
        sample = self._samples[update.sample]
        if sample.ended:
            return True
        text, stopped = "", False
        if sample.text is not None:
            update, text = self._certain_text(sample.text, update)
            stopped = sample.text.stopped
        finish = Finish.STOP if stopped else update.finish
        if finish is not None:
            sample.ended = True
            if all(one.ended for one in self._samples):
                self.on_end()
        if update.error is not None:
            return stopped
        asked = self.parameters.sampling.logprobs
        sample.cumulative += sum(update.logprobs)
        sample.untold.append(
            Delta(
                number=self.asked.number,
                sample=update.sample,
                text=text,
                ids=update.tokens,
                samples=len(self._samples),
                logprobs=() if asked is None else self._logprobs(update),
                cumulative=sample.cumulative,
                finish="" if finish is None else WORDS.get(finish, finish.value),
                prompt_tokens=len(self.prompt),
                found_tokens=update.found,
                warnings=self.warnings,
            )
        )
        count = sum([len(delta.ids) for delta in sample.untold])
        if finish is not None or not sample.begun or count >= self.interval:
            self.outbox.put(joined(sample.untold))
            sample.untold, sample.begun = [], True
        return stopped

    def _certain_text(self, text: TextAssembler, update: Update) -> tuple[Update, str]:
        """Return an update without tokens behind a stop text, and the text that is certain now.

        There may be such tokens where an engine tells of several at once.
        """
        pieces = []
        for count, token in enumerate(self._spoken(update), 1):
            pieces.append(text.take(token))
            if text.stopped:
                return _first(update, count), "".join(pieces)
        if update.finish is not None:
            pieces.append(text.rest())
        return update, "".join(pieces)

    def _spoken(self, update: Update) -> tuple[int, ...]:
        """Return the tokens that have a text: not the one that ended the sample, unless asked."""
        ended = update.finish is Finish.STOP and not self.parameters.include_stop
        return update.tokens[:-1] if ended else update.tokens

    def _logprobs(self, update: Update) -> tuple[str, ...]:
        """Return JSON in the form of Triton's vLLM backend: an object per token, by token id.

        That of a part of a letter has its `bytes`, too.
        """
        tokens: list[str] = []
        drawn = zip(update.tokens, update.logprobs, update.ranks, update.top, strict=True)
        for token, own, own_rank, top in drawn:
            entries: dict[int, dict[str, object]] = {}
            if top is not None:
                for rank, (best, value) in enumerate(zip(*map(list, top), strict=True), 1):
                    entries[int(best)] = self._entry(int(best), float(value), rank)
            entries.setdefault(token, self._entry(token, own, own_rank or None))
            tokens.append(json.dumps(entries, separators=(",", ":")))
        return tuple(tokens)

    def _entry(self, token: int, value: float, rank: int | None) -> dict[str, object]:
        name = self._name(token)
        entry: dict[str, object] = {"logprob": value, "rank": rank, "decoded_token": name}
        if "\ufffd" in name and self.tokenizer is not None:  # a part of a letter
            block = self.tokenizer.token_bytes(token)
            return entry if block is None else {**entry, "bytes": list(block)}
        return entry

    def _name(self, token: int) -> str:
        """Return a special token's name, or the text that a token adds to another one."""
        if self.tokenizer is None or token in self.special:
            return self.special.get(token, "")
        once, twice = (self.tokenizer.decode([token] * count) for count in (1, 2))
        # A decoder may take the space from what comes first. Parts of characters join to others.
        whole = "\ufffd" not in once and twice.startswith(once)
        return twice[len(once) :] if whole else once

    def _refuse(self, error: GeError) -> None:
        if not self._refused:
            self.outbox.put(*(joined(one.untold) for one in self._samples if one.untold))
            number = self.asked.number
            self.outbox.say(
                RequestFailed(number=number, error=type(error).__name__, message=str(error))
            )
        self._refused = True

    def _assembler(self, tokenizer: Tokenizer, known: tuple[int, ...]) -> TextAssembler:
        parameters = self.parameters
        least = parameters.min_tokens if parameters.structure is None else 0
        stream = tokenizer.stream(known, special=not parameters.skip_special_tokens)
        return TextAssembler(stream, parameters.stop, least, include_stop=parameters.include_stop)


def _first(update: Update, count: int) -> Update:
    """Return an update with the first `count` of its tokens."""
    return replace(
        update,
        tokens=update.tokens[:count],
        logprobs=update.logprobs[:count],
        ranks=update.ranks[:count],
        top=update.top[:count],
    )


def _last_text(tokenizer: Tokenizer, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Return a prompt's last tokens that are a text of whole characters; () where none are.

    A stream that begins with them tells what stands between them and what follows, such as a space.
    Source: vllm-project/vllm, vllm/v1/engine/detokenizer.py, which looks for them likewise.
    """
    ends = (prompt[-count:] for count in KNOWN)
    texts = ((end, tokenizer.decode(end)) for end in ends)
    return next((end for end, text in texts if text and "\ufffd" not in text), ())


def _updates(samples: Iterable[Sequence[Delta]]) -> Iterator[TokenUpdates]:
    """Yield messages with the deltas of all samples, joined as far as one message takes them."""
    whole: list[Delta] = []
    room = NEWS_BYTES
    for deltas in samples:
        parts: list[Delta] = []
        rest = deque(deltas)
        while rest:
            delta = rest.popleft()
            nbytes = _nbytes(delta)
            if nbytes > NEWS_BYTES and delta.logprobs and len(delta.ids) > 1:
                rest.extendleft(reversed(_halves(delta)))
                continue
            if nbytes > room and (whole or parts):
                yield TokenUpdates(deltas=(*whole, joined(parts)) if parts else tuple(whole))
                whole, parts, room = [], [], NEWS_BYTES
            parts.append(delta)
            room -= nbytes
        whole.append(joined(parts))
    if whole:
        yield TokenUpdates(deltas=tuple(whole))


def _nbytes(delta: Delta) -> int:
    """Return what a delta takes in a message, at most; `logprobs` is ASCII without controls."""
    logprobs = sum(2 * len(entries) + 3 for entries in delta.logprobs)
    return 512 + 12 * len(delta.text) + 20 * len(delta.ids) + logprobs


def _halves(delta: Delta) -> tuple[Delta, Delta]:
    """Return a delta in two; text and end come with the second one."""
    middle = len(delta.ids) // 2
    first, second = (
        replace(delta, ids=delta.ids[some], logprobs=delta.logprobs[some])
        for some in (slice(middle), slice(middle, None))
    )
    return replace(first, text="", finish=""), second
