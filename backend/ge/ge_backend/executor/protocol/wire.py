"""The one encoding of messages, and their way over a socket.

A message is one JSON object in one AF_UNIX SEQPACKET record, with file descriptors beside it where
the message says so. Decoding checks every field against its annotation, so nothing is executed and
nothing is guessed; pickle is never used.
"""

from __future__ import annotations

import array
import json
import os
import socket
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ge_backend.errors import ExecutorLost, GeError, ProtocolError
from ge_backend.executor.protocol.messages import VERSION, Message

__all__ = [
    "MAX_MESSAGE_BYTES",
    "Inbox",
    "decode",
    "encode",
    "send",
    "send_unless_full",
]

# A SEQPACKET record must fit into the socket's send buffer, 208 KiB by default on Linux.
MAX_MESSAGE_BYTES = 160 * 1024
# One descriptor goes with a message; the kernel closes what more a stranger may send.
_DESCRIPTOR_SPACE = socket.CMSG_SPACE(array.array("i").itemsize)


def encode(message: Message) -> bytes:
    """Return the message as bytes; `decode` is the inverse.

    Raises:
        ProtocolError: it is longer than one record can be.
    """
    name = type(message).__name__
    block = _ENCODER.encode({"type": name, **_fields(message)}).encode()
    if len(block) > MAX_MESSAGE_BYTES:
        raise ProtocolError(
            f"message {name} takes {len(block)} bytes, at most {MAX_MESSAGE_BYTES} fit; "
            "the model has too many tensors, or their names are too long"
        )
    return block


def decode(block: bytes) -> Message:
    """Return the message that `encode` wrote.

    Raises:
        ProtocolError: not a message of this version.
    """
    try:
        packed = json.loads(block)
        build = _BUILDERS[packed.pop("type")]
        message: Message = build(packed)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(
            f"message {block[:80]!r}… is not of protocol version {VERSION}: {error!r}; "
            "server and backend must come from one installation"
        ) from error
    return message


def send(sock: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message and its descriptors (which stay the caller's); wait while the way is full.

    Raises:
        ExecutorLost: the peer is gone.
        ProtocolError: the message is too long.
    """
    _send(sock, message, descriptors, 0)


def send_unless_full(sock: socket.socket, message: Message) -> bool:
    """Send one message if there is room for it now, else return False.

    Raises:
        ExecutorLost: the peer is gone.
        ProtocolError: the message is too long.
    """
    try:
        _send(sock, message, (), socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    return True


class Inbox:
    """What arrives on one socket, read by one thread at a time.

    It keeps the memory that messages are received into. Taking it anew for each, as large as the
    largest, took 16 of the 19 microseconds that receiving one took.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(MAX_MESSAGE_BYTES))

    def receive(self) -> tuple[Message, tuple[int, ...]]:
        """Receive one message and its descriptors (now the caller's to close).

        Raises:
            ExecutorLost: the peer is gone.
            ProtocolError: not a message of this version; what came with it is closed.
        """
        try:
            # Not socket.recv_fds: it drops its flags, and children would inherit the descriptors.
            length, ancillary, _, _ = self._sock.recvmsg_into(
                [self._buffer], _DESCRIPTOR_SPACE, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise ExecutorLost("the connection broke while waiting for a message") from error
        descriptors = _descriptors(ancillary)
        try:
            if not length:
                raise ExecutorLost("the peer closed the connection")
            return decode(bytes(self._buffer[:length])), descriptors
        except GeError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise


def _send(sock: socket.socket, message: Message, descriptors: tuple[int, ...], flags: int) -> None:
    block = encode(message)
    try:
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            sock.sendmsg([block], [rights], flags)
        else:
            sock.send(block, flags)
    except BlockingIOError:
        raise
    except OSError as error:
        raise ExecutorLost(
            f"the connection broke while sending {type(message).__name__}"
        ) from error


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> tuple[int, ...]:
    if not ancillary:
        return ()
    received = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    return tuple(received)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


_ENCODER = json.JSONEncoder(default=_fields, separators=(",", ":"))

_Builder = Callable[[Any], Any]


def _builder(annotation: Any) -> _Builder:
    """Return the function that makes a value of this annotation from what JSON gives, or raises."""
    if is_dataclass(annotation):
        return _dataclass_builder(typing.cast("type[Any]", annotation))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return _tuple_builder(_builder(arguments[0]))
    if origin is dict:
        return _dict_builder(_builder(arguments[1]))
    return _scalar_builder(annotation)


def _dataclass_builder(cls: type[Any]) -> _Builder:
    hints = typing.get_type_hints(cls)
    builders = {field.name: _builder(hints[field.name]) for field in fields(cls)}

    def build(packed: Any) -> Any:
        return cls(**{name: builders[name](value) for name, value in packed.items()})

    return build


def _tuple_builder(element: _Builder) -> _Builder:
    def build(packed: Any) -> tuple[Any, ...]:
        if type(packed) is not list:
            raise TypeError(f"expected a list, got {packed!r}")
        return tuple([element(item) for item in packed])

    return build


def _dict_builder(element: _Builder) -> _Builder:
    def build(packed: Any) -> dict[str, Any]:
        return {key: element(item) for key, item in packed.items()}

    return build


def _scalar_builder(annotation: Any) -> _Builder:
    accepted = (int, float) if annotation is float else (annotation,)

    def build(packed: Any) -> Any:
        if type(packed) not in accepted:  # not isinstance: in Python a bool is an int too
            raise TypeError(f"expected {annotation.__name__}, got {packed!r}")
        return packed

    return build


_BUILDERS: Mapping[str, _Builder] = types.MappingProxyType(
    {cls.__name__: _dataclass_builder(cls) for cls in typing.get_args(Message)}
)
