"""Messages that come often: numbers in front, and a rest that is written and read once."""

import struct
from dataclasses import replace

import pytest

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.codec import MAX_NUMBER, Codec
from ge_backend.executor.protocol.messages import Done, Ok, RetainOutput, Run, TensorRef
from ge_backend.executor.protocol.repeated_codec import KNOWN, MAX_BYTES, RepeatedCodec
from ge_backend.executor.protocol.wire import decode, encode

X = TensorRef(name="x", dtype="FP32", shape=(2, 2), offset=0, nbytes=16)
RUN = Run(id=7, graph=3, arena=0, inputs=(X,), outputs=(), bucket=(2, 2), real_rows=1)


DONE = Done(id=7, settled=("y",), queue_ns=1, run_ns=2, alone=True)


def run_codec(codec):
    numbers = ("id", "deadline_ns", "cost_ns")
    lists = ("slots", "starting")
    return RepeatedCodec(codec, Run, numbers=numbers, lists=lists, rare=("gathered", "retained"))


class CountingCodec(Codec):
    """Counts what it is asked."""

    def __init__(self):
        super().__init__((Run, Done, Ok))
        self.written = self.read = 0

    def encode(self, message):
        self.written += 1
        return super().encode(message)

    def decode(self, block):
        self.read += 1
        return super().decode(block)


@pytest.fixture
def codec():
    return CountingCodec()


def there_and_back(runs, run):
    back = runs.decode(runs.encode(run))
    assert back == run


def test_a_bucket_is_written_and_read_once(codec):
    """Whatever its runs' ids, deadlines and estimates; another bucket is another one."""
    runs = run_codec(codec)
    for number in range(5):
        there_and_back(runs, replace(RUN, id=number, deadline_ns=10 * number, cost_ns=number))
    assert (codec.written, codec.read) == (1, 1)
    there_and_back(runs, replace(RUN, bucket=(1, 2)))
    assert (codec.written, codec.read) == (2, 2)


def test_steps_of_sequences_are_written_and_read_once(codec):
    """Whichever slots they name, and whichever of them are starting."""
    runs = run_codec(codec)
    for slot in range(5):
        there_and_back(runs, replace(RUN, slots=(slot, 9), starting=(9,) * (slot % 2), rows=4))
    assert (codec.written, codec.read) == (1, 1)
    there_and_back(runs, replace(RUN, rows=4))
    assert (codec.written, codec.read) == (1, 1)


def test_what_keeps_other_tensors_each_time_is_not_remembered(codec):
    """It would push out what comes again; its slots come back all the same."""
    runs = run_codec(codec)
    there_and_back(runs, RUN)
    for key in range(KNOWN + 1):
        retained = RetainOutput(name="y", dtype="FP32", shape=(2,), key=key, also_to_host=False)
        there_and_back(runs, replace(RUN, retained=(retained,), slots=(key,), rows=1))
    written = codec.written
    runs.encode(RUN)
    assert codec.written == written


def test_what_is_long_is_read_each_time(codec):
    """So that a stranger cannot fill the memory."""
    runs = run_codec(codec)
    block = runs.encode(replace(RUN, inputs=(X,) * (MAX_BYTES // 50)))
    assert len(block) > MAX_BYTES
    assert runs.decode(block) == runs.decode(block)
    assert codec.read == 2


@pytest.mark.parametrize("number", [-1, MAX_NUMBER + 1])
@pytest.mark.parametrize(
    ("message", "place"), [*((RUN, i) for i in range(3)), *((DONE, i) for i in range(4))]
)
def test_numbers_in_front_have_ranges_too(number, message, place):
    """As in every other message."""
    head = "<3q" if message is RUN else "<4q"
    numbers = [1] * int(head[1])
    numbers[place] = number
    block = encode(message)
    front = 1 + struct.calcsize(head)
    with pytest.raises(ProtocolError, match="expected 0 to"):
        decode(block[:1] + struct.pack(head, *numbers) + block[front:])


@pytest.mark.parametrize(
    ("slots", "starting", "reason"),
    [
        ((-1,), (), "expected 0 to 1048576, got -1"),
        ((0, 2**20 + 1), (), "expected 0 to 1048576, got 1048577"),
        ((0,), (2**20 + 1,), "expected 0 to 1048576, got 1048577"),
    ],
)
def test_numbers_in_lists_have_the_ranges_of_their_field(slots, starting, reason):
    """As where the message is JSON."""
    with pytest.raises(ProtocolError, match=reason):
        decode(encode(replace(RUN, slots=slots, starting=starting, rows=1)))


@pytest.mark.parametrize(
    "counts", [(-1, 0), (MAX_NUMBER, 0), (2**62 + 1, 0), (0, MAX_NUMBER), (1000, 0)]
)
def test_a_list_that_is_longer_than_its_message_is_refused(counts):
    """Nothing is taken for numbers that did not come."""
    block = encode(replace(RUN, slots=(1,), rows=1))
    front = 1 + struct.calcsize("<3q")
    with pytest.raises(ProtocolError, match="protocol version"):
        decode(block[:front] + struct.pack("<2q", *counts) + block[front + 16 :])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"id": 9, "queue_ns": 4, "run_ns": 5, "held_up_ns": 6, "alone": False},
        {"settled": (), "spilled": (X,)},
        {"states": {"h": (2, 3)}},
    ],
)
def test_the_end_of_a_run_comes_back_as_it_was(changes):
    """Time after time."""
    done = replace(DONE, **changes)
    assert [decode(encode(done)) for _ in range(2)] == [done, done]
    assert decode(encode(DONE)) == DONE


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"short",
        bytes(24),
        bytes(24) + b"{}",
        *[bytes(n) + encode(Ok(id=1)) for n in (24, 32, 40)],
    ],
)
@pytest.mark.parametrize("mark", [b"\1", b"\2"])
def test_what_is_no_such_message_is_refused(mark, rest):
    """Too short, not JSON, or another message."""
    with pytest.raises(ProtocolError, match="protocol version"):
        decode(mark + rest)
