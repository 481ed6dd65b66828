"""The one encoding of messages, and their way over a socket.

A message is one JSON object in one AF_UNIX SEQPACKET record, with file descriptors beside it where
the message says so; every field is in its range (`ranges.py`), and pickle is never used. There are
exceptions. A `Post` is a zero byte, its id in decimal digits, a line feed, and the body as it is. A
`Run` is a byte of one, a `Done` one of two, and what `repeated_codec.py` makes of it.
"""

from __future__ import annotations

import array
import socket
import typing
from collections.abc import Sequence

from ge_backend.errors import ExecutorLost, GeError, ProtocolError
from ge_backend.executor.protocol.codec import Codec
from ge_backend.executor.protocol.descriptors import close_all
from ge_backend.executor.protocol.messages import VERSION, Done, Message, Post, Run
from ge_backend.executor.protocol.ranges import RULES, USUAL
from ge_backend.executor.protocol.repeated_codec import RepeatedCodec

__all__ = [
    "MAX_MESSAGE_BYTES",
    "Inbox",
    "decode",
    "encode",
    "send",
    "send_encoded",
]

# A SEQPACKET record must fit into the socket's send buffer, 208 KiB by default on Linux.
MAX_MESSAGE_BYTES = 160 * 1024
# One descriptor goes with a message; the kernel closes what more a stranger may send.
_DESCRIPTOR_SPACE = socket.CMSG_SPACE(array.array("i").itemsize)
# What a Post, a Run and a Done begin with, and no JSON.
_POST, _RUN, _DONE = b"\0", b"\1", b"\2"
_CODEC: Codec[Message] = Codec(typing.get_args(Message), RULES, USUAL)
_RUNS = RepeatedCodec(
    _CODEC,
    Run,
    numbers=("id", "deadline_ns", "cost_ns"),
    lists=("slots", "starting"),
    rare=("gathered", "retained"),
)
_DONES = RepeatedCodec(
    _CODEC,
    Done,
    numbers=("id", "queue_ns", "run_ns", "held_up_ns"),
    rare=("spilled", "states"),
)


def encode(message: Message) -> bytes:
    """Return the message as bytes; `decode` is the inverse.

    Raises:
        ProtocolError: it is longer than one record can be.
    """
    if isinstance(message, Post):
        block = b"%b%d\n%b" % (_POST, message.id, message.body)
    elif isinstance(message, Run):
        block = _RUN + _RUNS.encode(message)
    elif isinstance(message, Done):
        block = _DONE + _DONES.encode(message)
    else:
        block = _CODEC.encode(message)
    if len(block) > MAX_MESSAGE_BYTES:
        raise ProtocolError(
            f"message {type(message).__name__} takes {len(block)} bytes, at most "
            f"{MAX_MESSAGE_BYTES} fit; the model has too many tensors, their names are too long, "
            "or a run of it has too many rows"
        )
    return block


def decode(block: bytes) -> Message:
    """Return the message that `encode` wrote.

    Raises:
        ProtocolError: not a message of this version.
    """
    try:
        if block[:1] == _POST:
            number, _, body = block[1:].partition(b"\n")
            post = Post(id=int(number), body=body)
            USUAL.check_number(post.id)
            return post
        if block[:1] == _RUN:
            return _RUNS.decode(block[1:])
        if block[:1] == _DONE:
            return _DONES.decode(block[1:])
        return _CODEC.decode(block)
    except (ProtocolError, ValueError) as error:
        raise ProtocolError(
            f"this is not protocol version {VERSION}: {error}; server and backend must come from "
            "one installation"
        ) from error


def send(
    sock: socket.socket, message: Message, descriptors: tuple[int, ...] = (), *, wait: bool = True
) -> bool:
    """Send one message; all else as in `send_encoded`.

    Raises:
        ExecutorLost: the peer is gone.
        ProtocolError: the message is too long.
    """
    what = type(message).__name__
    return send_encoded(sock, encode(message), descriptors, wait=wait, what=what)


def send_encoded(
    sock: socket.socket,
    block: bytes,
    descriptors: tuple[int, ...] = (),
    *,
    wait: bool,
    what: str = "an answer",
) -> bool:
    """Send what `encode` has returned; return False where there is no room for it.

    Args:
        sock: where to.
        block: the message.
        descriptors: sent with it; they stay the caller's.
        wait: for room, for as long as the socket's SO_SNDTIMEO says.
        what: it is, for messages.

    Raises:
        ExecutorLost: the peer is gone.
    """
    flags = 0 if wait else socket.MSG_DONTWAIT
    try:
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            sock.sendmsg([block], [rights], flags)
        else:
            sock.send(block, flags)
    except BlockingIOError:
        return False
    except OSError as error:
        raise ExecutorLost(f"the connection broke while sending {what}") from error
    return True


class Inbox:
    """What arrives on one socket, read by one thread at a time.

    It keeps the memory that messages are received into. Taking it anew for each, as large as the
    largest, took 16 of the 19 microseconds that receiving one took.

    Attributes:
        dropped: a descriptor of the last message did not come: this process may have no more.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.dropped = False
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
            length, ancillary, flags, _ = self._sock.recvmsg_into(
                [self._buffer], _DESCRIPTOR_SPACE, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise ExecutorLost("the connection broke while waiting for a message") from error
        descriptors = _descriptors(ancillary) if ancillary else ()
        self.dropped = bool(flags & socket.MSG_CTRUNC and not descriptors)
        try:
            if not length:
                raise ExecutorLost("the peer closed the connection")
            return decode(bytes(self._buffer[:length])), descriptors
        except GeError:
            close_all(descriptors)
            raise


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> tuple[int, ...]:
    received = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    return tuple(received)
