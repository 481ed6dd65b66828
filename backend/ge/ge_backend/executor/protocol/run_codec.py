"""The message of a run: three numbers in front, then what is the same for every run of a bucket.

The latter is JSON, as all messages are, and both ends remember it: for a bucket that has run before
it is neither written nor read again, which takes four times as long as all the rest.
"""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.codec import Codec
from ge_backend.executor.protocol.messages import Message, Run
from ge_backend.executor.protocol.ranges import USUAL

__all__ = ["RunCodec"]

_HEAD = struct.Struct("<3q")  # id, deadline_ns, cost_ns
_NAMES = tuple(
    field.name for field in fields(Run) if field.name not in {"id", "deadline_ns", "cost_ns"}
)
_REST = operator.attrgetter(*_NAMES)
# Buckets that are remembered, by each end; and what is longer than this is not.
KNOWN = 256
MOST_BYTES = 4096


class RunCodec:
    """Encodes runs.

    Args:
        codec: of all messages; encodes what is the same.
    """

    def __init__(self, codec: Codec[Message]) -> None:
        self._codec = codec
        self._written = functools.lru_cache(KNOWN)(self._write)
        self._known = functools.lru_cache(KNOWN)(self._read)

    def encode(self, run: Run) -> bytes:
        """Return the run as bytes; `decode` is the inverse."""
        rest = _REST(run)
        # Of sequences and fused steps each run names other slots and tensors.
        often = not (run.slots or run.fed or run.kept)
        body = self._written(rest) if often else self._write(rest)
        return _HEAD.pack(run.id, run.deadline_ns, run.cost_ns) + body

    def decode(self, block: bytes) -> Run:
        """Return the run that `encode` wrote.

        Raises:
            ProtocolError: it is no run.
            ValueError: a number is out of range.
        """
        head, body = block[: _HEAD.size], block[_HEAD.size :]
        if len(head) < _HEAD.size:
            raise ProtocolError(f"a run of {len(block)} bytes is none")
        numbers = _HEAD.unpack(head)
        for number in numbers:
            USUAL.check_number(number)
        rest = self._known(body) if len(body) <= MOST_BYTES else self._read(body)
        return Run(id=numbers[0], deadline_ns=numbers[1], cost_ns=numbers[2], **rest)

    def _write(self, rest: tuple[Any, ...]) -> bytes:
        return self._codec.encode(Run(id=0, **dict(zip(_NAMES, rest, strict=True))))

    def _read(self, body: bytes) -> Mapping[str, Any]:
        run = self._codec.decode(body)
        if not isinstance(run, Run):
            raise ProtocolError(f"expected a run, got {type(run).__name__}")
        return dict(zip(_NAMES, _REST(run), strict=True))
