"""Messages that come often: numbers in front, then what is the same for every run of a bucket.

The latter is JSON, as all messages are, and both ends remember it: for a bucket that has run before
it is neither written nor read again, which takes four times as long as all the rest.
"""

from __future__ import annotations

import functools
import itertools
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.codec import Codec
from ge_backend.executor.protocol.messages import Done, Message, Run
from ge_backend.executor.protocol.ranges import RULES, USUAL

__all__ = ["RepeatedCodec"]

# Buckets that are remembered, by each end; and what is longer than this is not.
KNOWN = 256
MAX_BYTES = 4096

_Repeated = TypeVar("_Repeated", bound=Run | Done)


class RepeatedCodec(Generic[_Repeated]):
    """Encodes messages of one class.

    Args:
        codec: of all messages; encodes what is the same.
        kind: the class.
        numbers: its fields that differ each time; 64 bits each.
        lists: those that do and hold such numbers, or none, which is their default. Behind
            `numbers` stands how many each holds, and then these. None, or two or more.
        rare: its fields that differ each time, too, but are mostly empty, which they are by
            default; where one is not, the message is not remembered. Two or more, like `numbers`.
    """

    def __init__(
        self,
        codec: Codec[Message],
        kind: type[_Repeated],
        *,
        numbers: Sequence[str],
        lists: Sequence[str] = (),
        rare: Sequence[str],
    ) -> None:
        self._codec = codec
        self._kind = kind
        self._head = struct.Struct(f"<{len(numbers)}q")
        self._numbers = tuple(numbers)
        self._number_values = operator.attrgetter(*numbers)
        self._counts = struct.Struct(f"<{len(lists)}q")
        self._list_values = operator.attrgetter(*lists) if lists else lambda _: ()
        self._lists = {name: RULES.get((kind, name), USUAL) for name in lists}
        self._none = bytes(self._counts.size)  # how lists begin that are all empty
        self._empty: dict[str, Any] = dict.fromkeys(lists, ())
        self._blank: dict[str, Any] = {**dict.fromkeys(numbers, 0), **self._empty}
        self._rest = tuple(f.name for f in fields(kind) if f.name not in self._blank)
        self._rare_values = operator.attrgetter(*rare)
        self._common = tuple(name for name in self._rest if name not in rare)
        self._common_values = operator.attrgetter(*self._common)
        self._written = functools.lru_cache(KNOWN)(self._write)
        self._known = functools.lru_cache(KNOWN)(self._read)

    def encode(self, message: _Repeated) -> bytes:
        """Return the message as bytes; `decode` is the inverse."""
        if any(self._rare_values(message)):
            body = self._codec.encode(replace(message, **self._blank))
        else:
            body = self._written(self._common_values(message))
        lists = self._list_values(message)
        listed = _packed(lists) if any(lists) else self._none
        return self._head.pack(*self._number_values(message)) + listed + body

    def decode(self, block: bytes) -> _Repeated:
        """Return the message that `encode` wrote.

        Raises:
            ProtocolError: it is none.
            ValueError: a number is out of range.
        """
        at = self._head.size
        numbers = self._head.unpack(self._part(block, 0, at))
        for number in numbers:
            USUAL.check_number(number)
        lists, at = self._lists_at(block, at)
        body = block[at:]
        rest = self._known(body) if len(body) <= MAX_BYTES else self._read(body)
        return self._kind(**dict(zip(self._numbers, numbers, strict=True)), **lists, **rest)

    def _lists_at(self, block: bytes, at: int) -> tuple[Mapping[str, Any], int]:
        """Return the lists that begin there, by name, and where they end."""
        begin = at + len(self._none)
        if block.startswith(self._none, at):
            return self._empty, begin
        lists: dict[str, Any] = {}
        counts = self._counts.unpack(self._part(block, at, begin))
        for (name, rule), count in zip(self._lists.items(), counts, strict=True):
            USUAL.check_number(count)
            end = begin + 8 * count
            lists[name] = struct.unpack(f"<{count}q", self._part(block, begin, end))
            for value in lists[name]:
                rule.check_number(value)
            begin = end
        return lists, begin

    def _part(self, block: bytes, begin: int, end: int) -> bytes:
        if len(block) < end:
            raise ProtocolError(f"a {self._kind.__name__} of {len(block)} bytes is none")
        return block[begin:end]

    def _write(self, common: tuple[Any, ...]) -> bytes:
        values = dict(zip(self._common, common, strict=True))
        return self._codec.encode(self._kind(**values, **self._blank))

    def _read(self, body: bytes) -> Mapping[str, Any]:
        message = self._codec.decode(body)
        if not isinstance(message, self._kind):
            found = type(message).__name__
            raise ProtocolError(f"expected a {self._kind.__name__}, got {found}")
        return {name: getattr(message, name) for name in self._rest}


def _packed(lists: Sequence[Sequence[int]]) -> bytes:
    numbers = [*map(len, lists), *itertools.chain.from_iterable(lists)]
    return struct.pack(f"<{len(numbers)}q", *numbers)
