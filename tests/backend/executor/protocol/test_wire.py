"""Messages survive the way; what is not a message of this version is refused."""

import contextlib
import json
import os
import socket
import struct
import tracemalloc
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.any_messages import values_of
from builders.null_models import comes_true, num_descriptors
from ge_backend.device.base import GraphSource
from ge_backend.errors import ExecutorLost, ProtocolError
from ge_backend.executor.protocol import messages, wire
from ge_backend.executor.protocol.messages import Failed, Hello, Inspect, Ok, Run, TensorRef
from ge_backend.executor.protocol.wire import MAX_MESSAGE_BYTES, Inbox, decode, encode, send

ALL = typing.get_args(messages.Message)


@pytest.fixture
def ends():
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield pair
    for end in pair:
        end.close()


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_every_message_survives_the_way(cls, data):
    """Decoding what was encoded gives an equal message, whatever its fields may hold."""
    message = data.draw(values_of(cls))
    assert decode(encode(message)) == message


def test_every_message_is_exported_and_has_an_id():
    """`messages.__all__` names every message, and each answers or asks by id."""
    assert {cls.__name__ for cls in ALL} <= set(messages.__all__)
    assert all("id" in typing.get_type_hints(cls) for cls in ALL)


def packed(**fields):
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\xff\xfe",
        b"not json",
        b"[]",
        b"null",
        b"[" * 100_000,
        packed(),
        packed(type="Explode", id=1),
        packed(type=["Ok"], id=1),
        packed(type="Ok"),
        packed(type="Ok", id="1"),
        packed(type="Ok", id=True),
        packed(type="Ok", id=1.0),
        packed(type="Ok", id=1, more=2),
        packed(type="Prepare", id=1, graph=1, repeats=1, inputs="no"),
        packed(type="Prepare", id=1, graph=1, repeats=1, inputs=[{"name": "x"}]),
        packed(type="Prepare", id=1, graph=1, repeats=1, inputs=[7]),
        packed(type="TensorRef", name="x", dtype="FP32", shape=[], offset=0, nbytes=0),
        packed(
            type="Loaded", id=1, graph=1, shape_policy={"runs": "any"},
            signature={"inputs": [], "outputs": [], "axis_limits": [1]},
        ),
    ],
)  # fmt: skip
def test_what_is_not_a_message_is_refused(block):
    """Unknown types and fields, wrong or missing values and garbage are protocol errors."""
    with pytest.raises(ProtocolError, match="protocol version"):
        decode(block)


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_decoded_but_never_crashes(block):
    """Whatever bytes come, decoding gives a message or a protocol error."""
    with contextlib.suppress(ProtocolError):
        assert isinstance(decode(block), ALL)


def test_a_field_with_a_default_may_be_missing():
    """A run without a deadline needs not say so."""
    block = packed(type="Run", id=1, graph=2, arena=3, inputs=[], outputs=[])
    assert decode(block) == Run(id=1, graph=2, arena=3, inputs=(), outputs=())


def test_a_message_that_is_too_long_is_not_sent(ends):
    """A message longer than a record names its size and the limit, and the way stays usable."""
    with pytest.raises(ProtocolError, match=f"at most {MAX_MESSAGE_BYTES} fit"):
        send(ends[0], Failed(id=1, error="GeError", message="x" * MAX_MESSAGE_BYTES))
    send(ends[0], Ok(id=2))
    assert Inbox(ends[1]).receive() == (Ok(id=2), ())


def test_the_longest_message_fits_into_a_record(ends):
    """A message of exactly the limit arrives whole."""
    empty = len(encode(Failed(id=1, error="e", message="")))
    message = Failed(id=1, error="e", message="x" * (MAX_MESSAGE_BYTES - empty))
    send(ends[0], message)
    assert Inbox(ends[1]).receive()[0] == message


def test_a_descriptor_travels_with_its_message_and_is_closed_on_exec(ends):
    """The receiver gets a descriptor of its own for the same file, not inherited by children."""
    descriptor = os.memfd_create("test")
    os.write(descriptor, b"shared")
    send(ends[0], Ok(id=1), (descriptor,))
    os.close(descriptor)
    _, (received,) = Inbox(ends[1]).receive()
    assert os.pread(received, 6, 0) == b"shared"
    assert not os.get_inheritable(received)
    os.close(received)


def test_a_descriptor_of_a_malformed_message_is_closed(ends):
    """What comes with a message that cannot be read does not stay open."""
    before = num_descriptors()
    descriptor = os.memfd_create("test")
    socket.send_fds(ends[0], [b"rubbish"], [descriptor])
    os.close(descriptor)
    with pytest.raises(ProtocolError):
        Inbox(ends[1]).receive()
    assert comes_true(lambda: num_descriptors() <= before)


def test_a_peer_that_left_is_noticed_both_ways(ends):
    """Sending to it and waiting for it both say that it is lost."""
    ends[1].close()
    with pytest.raises(ExecutorLost, match="sending Hello"):
        send(ends[0], Hello(id=1, version=1))
    with pytest.raises(ExecutorLost, match="closed"):
        Inbox(ends[0]).receive()


def test_a_closed_socket_is_a_lost_executor(ends):
    """A socket that this side has closed is no operating system error."""
    ends[0].close()
    with pytest.raises(ExecutorLost):
        Inbox(ends[0]).receive()
    with pytest.raises(ExecutorLost):
        send(ends[0], Ok(id=1))


def test_a_full_socket_refuses_instead_of_waiting(ends):
    """`send_unless_full` returns False once the peer has left enough unread, and True after."""
    sent = 0
    while wire.send(ends[0], Inspect(id=sent), wait=False):
        sent += 1
    assert [Inbox(ends[1]).receive()[0] for _ in range(sent)] == [
        Inspect(id=i) for i in range(sent)
    ]
    assert wire.send(ends[0], Inspect(id=sent), wait=False)


def test_what_was_encoded_before_is_sent_with_or_without_waiting(ends):
    """False where there is no room, at once or within the time that the socket waits for some."""
    block, memory = encode(Inspect(id=1)), os.memfd_create("spill")
    assert wire.send_encoded(ends[0], block, (memory,), wait=False)
    os.close(memory)
    message, (received,) = Inbox(ends[1]).receive()
    os.close(received)
    assert message == Inspect(id=1)
    while wire.send_encoded(ends[0], block, wait=False):
        pass
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 1000))
    assert not wire.send_encoded(ends[0], block, wait=True)
    Inbox(ends[1]).receive()
    assert wire.send_encoded(ends[0], block, wait=True)


def test_a_run_takes_a_few_hundred_bytes():
    """Tensors do not travel in messages: a run of four tensors is well under a kilobyte."""
    ref = TensorRef(name="input_ids", dtype="INT64", shape=(32, 512), offset=2**30, nbytes=2**17)
    run = Run(id=1, graph=1, arena=1, inputs=(ref, ref), outputs=(ref, ref))
    assert len(encode(run)) < 700


def test_a_source_travels_whole():
    """Every field of a graph source is in the message, so that equal ones are shared."""
    source = GraphSource(path="/m/model.onnx", stamp="1-2", precision="bf16", threads=3)
    assert decode(encode(messages.Load(id=1, source=source))).source == source


def test_an_inbox_keeps_its_memory(ends):
    """A message costs what it is long, not what the longest is."""
    inbox = Inbox(ends[1])
    for number in range(3):
        send(ends[0], Ok(id=number))
        inbox.receive()
    tracemalloc.start()
    try:
        send(ends[0], Ok(id=4))
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        assert inbox.receive() == (Ok(id=4), ())
        assert tracemalloc.get_traced_memory()[1] - before < MAX_MESSAGE_BYTES / 10
    finally:
        tracemalloc.stop()
