"""What a stub and the service `generation` say to each other, in the bodies of posts.

    stub → service            service → stub
    Submit(number, …)         TokenUpdates(deltas)*, the last delta of each sample with its `finish`
                              RequestFailed(number, error, message) in place of the rest
    Abort(number)             RequestFailed(number, …), or TokenUpdates if it had ended
    StatsRequest()            StatsReply(figures)

A request is known by its connection and `number`. What is too long for one post goes in several:
each begins with a byte that says whether more follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ge_backend.errors import InvalidRequest, ProtocolError
from ge_backend.executor.protocol.codec import MAX_NUMBER, Codec
from ge_backend.executor.protocol.wire import MAX_MESSAGE_BYTES
from ge_text.engine.figures import HistogramFigures

__all__ = [
    "CODEC",
    "Abort",
    "Delta",
    "Parts",
    "RequestFailed",
    "Sample",
    "ServiceSpec",
    "StatsReply",
    "StatsRequest",
    "Submit",
    "TokenUpdates",
    "joined",
    "parts_of",
]

MAX_BYTES = 1 << 26
MAX_REQUEST_BYTES = MAX_BYTES // 2  # of a request that begins: what it brings is sent with it later
_MORE, _LAST = b"+", b"."
# What stands before a post's body takes far less than the rest.
_PART_BYTES = MAX_MESSAGE_BYTES - 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """What is served: the key of the service, so two equal ones share an engine and its weights.

    Attributes:
        folder: the checkpoint.
        home: the model's own version folder, also where `folder` is a copy; "": it is `folder`.
        stamp: changes when one of its files does.
        precision, threads: as in `GraphSource`.
        priority: of its steps among the device's jobs.
        served_as: the model's name in timelines.
        settings: as `generate.settings.read_settings` takes them; vLLM's own arguments, without
            the `vllm.` before them, where that is the engine.
        engine: `vllm`, or what computes our own: `torch`, `openvino`, or "", the first that can.
        assumed: as in `OpenLanguage`.
    """

    folder: str
    stamp: str
    precision: str
    threads: int
    priority: int
    served_as: str
    settings: dict[str, str]
    engine: str = ""
    home: str = ""
    assumed: bool = False

    def key(self) -> str:
        """Return it as a text; `of` is the inverse."""
        return _SPECS.encode(self).decode()

    @classmethod
    def of(cls, key: str) -> ServiceSpec:
        """Return what a key says.

        Raises:
            ProtocolError: it is none.
        """
        return _SPECS.decode(key.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a request has of one sample already, when it goes on in another executor.

    Attributes:
        cumulative: sum of the log-probabilities of `ids`.
    """

    ids: tuple[int, ...] = ()
    ended: bool = False
    cumulative: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A prompt, and what is to become of it; a client gives it `number` and `seed`.

    Attributes:
        text: the prompt, where it did not come as tokens.
        ids: the prompt's tokens; empty where `text` says it.
        parameters: a JSON object, as the client gave it.
        seed: for sampling, where the client gave none.
        timeout_s: 0: no limit.
        samples: empty for a request that begins.
        cumulative: the sum of the log-probabilities is wanted.
        again: an executor had taken it on and died: it is not refused for those that wait.
    """

    number: int = 0
    text: str
    ids: tuple[int, ...]
    parameters: str
    seed: int = 0
    timeout_s: float = 0.0
    samples: tuple[Sample, ...] = ()
    cumulative: bool = False
    again: bool = False

    def check(self) -> None:
        """See that the other end can read it: what it cannot read ends the connection.

        Raises:
            InvalidRequest: it is too long, or a token id is no number of a token.
        """
        if self.ids and abs(token := max(self.ids, key=abs)) > MAX_NUMBER:
            raise InvalidRequest(f"input_ids has {token}, which is no token id")
        # A character takes six bytes at most, an id of up to 2**62 twenty.
        if 6 * (len(self.text) + len(self.parameters)) + 20 * len(self.ids) < MAX_REQUEST_BYTES:
            return
        if (nbytes := len(CODEC.encode(self))) > MAX_REQUEST_BYTES:
            raise InvalidRequest(
                f"the request takes {nbytes} bytes, of which a model takes {MAX_REQUEST_BYTES}; "
                "send a shorter prompt"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """The client of this request no longer waits."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsRequest:
    """Ask what has been counted since the last request for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What is new of one sample of one request.

    Attributes:
        text: whole characters; may be empty while some are held back.
        ids: tokens whose text has been given out or is held back.
        logprobs: a JSON object per token; empty where none were asked for.
        cumulative: sum of the log-probabilities of all of the sample's tokens so far; not a number
            where one of them is not known, as where none were asked for.
        finish: why the sample has ended: `stop` or `length`; "" while it goes on.
        found_tokens: how many of `prompt_tokens` were in the cache already; -1: not known.
        samples: how many the request has.
        warnings: what the request says and is not kept to.
    """

    number: int
    sample: int
    text: str
    ids: tuple[int, ...]
    samples: int = 1
    logprobs: tuple[str, ...] = ()
    cumulative: float = 0.0
    finish: str = ""
    prompt_tokens: int = 0
    found_tokens: int = -1
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUpdates:
    """What steps have brought, for any number of requests; at most one delta per sample."""

    deltas: tuple[Delta, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """A request has ended without its answer; `error` is a class name of `ge_backend.errors`."""

    number: int
    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsReply:
    """Levels as they are now, and what was counted since any stub asked last.

    Attributes:
        engine: what computes the steps, by its name in the table, or `vllm`.
        levels, counts, histograms: by the names of `generate.figures.Figures`.
        buckets: those that were used, as `8x1x12`.
    """

    engine: str = ""
    levels: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    buckets: dict[str, int] = field(default_factory=dict)
    histograms: dict[str, HistogramFigures] = field(default_factory=dict)


def joined(deltas: Sequence[Delta]) -> Delta:
    """Return one sample's deltas, at least one, as one."""
    if len(deltas) == 1:
        return deltas[0]
    return replace(
        deltas[-1],
        text="".join(delta.text for delta in deltas),
        ids=tuple(chain.from_iterable(delta.ids for delta in deltas)),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
    )


_SPECS: Codec[ServiceSpec] = Codec((ServiceSpec,))
TextMessage = Submit | Abort | StatsRequest | TokenUpdates | RequestFailed | StatsReply
CODEC: Codec[TextMessage] = Codec(
    (Submit, Abort, StatsRequest, TokenUpdates, RequestFailed, StatsReply)
)


def parts_of(message: TextMessage) -> Iterator[bytes]:
    """Yield the bodies of the posts that carry a message; `Parts` is the inverse."""
    block = CODEC.encode(message)
    for start in range(0, len(block), _PART_BYTES):
        end = start + _PART_BYTES
        yield (_MORE if end < len(block) else _LAST) + block[start:end]


class Parts:
    """Joins the posts of one direction of one connection."""

    def __init__(self) -> None:
        self._block = bytearray()

    def take(self, body: bytes) -> TextMessage | None:
        """Return the message that this post completes, None if more follows.

        Raises:
            ProtocolError: it is no message of this protocol.
        """
        self._block += body[1:]
        if len(self._block) > MAX_BYTES:
            raise ProtocolError(f"a message has more than {MAX_BYTES} bytes")
        if body[:1] == _MORE:
            return None
        block, self._block = self._block, bytearray()
        return CODEC.decode(bytes(block))
