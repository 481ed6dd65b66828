"""A run's message: numbers in front, and a rest that is written and read once for a bucket."""

import struct
from dataclasses import replace

import pytest

from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.codec import Codec
from ge_backend.executor.protocol.messages import Ok, Run, TensorRef
from ge_backend.executor.protocol.rules import MOST
from ge_backend.executor.protocol.run_codec import KNOWN, MOST_BYTES, RunCodec
from ge_backend.executor.protocol.wire import decode, encode

X = TensorRef(name="x", dtype="FP32", shape=(2, 2), offset=0, nbytes=16)
RUN = Run(id=7, graph=3, arena=0, inputs=(X,), outputs=(), bucket=(2, 2), real_rows=1)


class CountingCodec(Codec):
    """Counts what it is asked."""

    def __init__(self):
        super().__init__((Run, Ok))
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
    runs = RunCodec(codec)
    for number in range(5):
        there_and_back(runs, replace(RUN, id=number, deadline_ns=10 * number, cost_ns=number))
    assert (codec.written, codec.read) == (1, 1)
    there_and_back(runs, replace(RUN, bucket=(1, 2)))
    assert (codec.written, codec.read) == (2, 2)


def test_what_names_other_slots_each_time_is_not_remembered(codec):
    """It would push out what comes again."""
    runs = RunCodec(codec)
    there_and_back(runs, RUN)
    for slot in range(KNOWN + 1):
        runs.encode(replace(RUN, slots=(slot,), rows=1))
    written = codec.written
    runs.encode(RUN)
    assert codec.written == written


def test_what_is_long_is_read_each_time(codec):
    """So that a stranger cannot fill the memory."""
    runs = RunCodec(codec)
    block = runs.encode(replace(RUN, inputs=(X,) * (MOST_BYTES // 50)))
    assert len(block) > MOST_BYTES
    assert runs.decode(block) == runs.decode(block)
    assert codec.read == 2


@pytest.mark.parametrize("number", [-1, MOST + 1])
@pytest.mark.parametrize("place", range(3))
def test_numbers_in_front_have_ranges_too(number, place):
    """As in every other message."""
    numbers = [1, 1, 1]
    numbers[place] = number
    block = encode(RUN)
    front = 1 + struct.calcsize("<3q")
    with pytest.raises(ProtocolError, match="expected 0 to"):
        decode(block[:1] + struct.pack("<3q", *numbers) + block[front:])


@pytest.mark.parametrize(
    "rest", [b"", b"short", bytes(24), bytes(24) + b"{}", bytes(24) + encode(Ok(id=1))]
)
def test_what_is_no_run_is_refused(rest):
    """Too short, not JSON, or another message."""
    with pytest.raises(ProtocolError, match="protocol version"):
        decode(b"\1" + rest)
