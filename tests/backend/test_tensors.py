"""Data types, tensor descriptions, and the two formats numpy has no type for."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ge_backend.errors import ConfigError, InvalidRequest
from ge_backend.tensors import (
    DATA_TYPES,
    Signature,
    TensorSpec,
    agree,
    bf16_to_float32,
    data_type,
    decode_bytes,
    encode_bytes,
    float32_to_bf16,
)

FP32 = DATA_TYPES["FP32"]
SPEC = TensorSpec(name="x", dtype=FP32, dims=(-1, 4, -1), axes=("batch", "", ""))


@pytest.mark.parametrize(
    ("name", "itemsize"),
    [
        ("BOOL", 1),
        ("UINT8", 1),
        ("INT16", 2),
        ("UINT32", 4),
        ("INT64", 8),
        ("FP16", 2),
        ("FP32", 4),
        ("FP64", 8),
        ("BF16", 2),
        ("BYTES", 0),
    ],
)
def test_sizes_of_elements(name, itemsize):
    """An element has the size that Triton gives it; BYTES has none."""
    assert DATA_TYPES[name].itemsize == itemsize


@pytest.mark.parametrize("dtype", DATA_TYPES.values(), ids=lambda dtype: dtype.name)
def test_both_names_find_a_type(dtype):
    """The wire name and the name in config.pbtxt are the same type."""
    assert data_type(dtype.name) is dtype
    assert data_type(dtype.config_name) is dtype


def test_strings_have_a_name_of_their_own():
    """BYTES is TYPE_STRING in config.pbtxt."""
    assert DATA_TYPES["BYTES"].config_name == "TYPE_STRING"
    assert data_type("STRING").name == "BYTES"


@pytest.mark.parametrize("name", ["FLOAT", "fp32", "", "TYPE_", "TYPE_INVALID"])
def test_an_unknown_type_is_refused_with_the_known_ones(name):
    """A wrong name is a ConfigError that lists the right ones."""
    with pytest.raises(ConfigError, match=r"TYPE_FP32, .*TYPE_STRING"):
        data_type(name)


def test_types_have_one_name_each():
    """No two types share an ONNX name."""
    assert len({dtype.onnx for dtype in DATA_TYPES.values()}) == len(DATA_TYPES)


def test_describe_shows_names_and_sizes():
    """Free dimensions show their axis, or `?`."""
    assert SPEC.describe() == "FP32 [batch, 4, ?]"


def test_shape_needs_every_free_axis():
    """A shape is known once every free dimension has a named size."""
    named = TensorSpec(name="x", dtype=FP32, dims=(-1, 4), axes=("batch", ""))
    assert named.shape({"batch": 0, "other": 9}) == (0, 4)
    assert named.shape({"other": 9}) is None
    assert SPEC.shape({"batch": 3}) is None


def test_a_fixed_dimension_ignores_its_axis():
    """A size that the graph fixes is not taken from the axes."""
    spec = TensorSpec(name="x", dtype=FP32, dims=(7,), axes=("batch",))
    assert spec.shape({"batch": 3}) == (7,)


def test_a_signature_finds_tensors_by_name():
    """Inputs and outputs are looked up separately."""
    signature = Signature(inputs=(SPEC,), outputs=(), axis_limits={})
    assert signature.input("x") is SPEC
    assert signature.output("x") is None
    assert signature.input("y") is None


@given(arrays.arrays(object, arrays.array_shapes(min_dims=0, min_side=0), elements=st.binary()))
def test_bytes_come_back(array):
    """What `encode_bytes` wrote, `decode_bytes` reads: any bytes, in any shape."""
    back = decode_bytes(encode_bytes(array), array.shape)
    assert (back.shape, back.dtype, back.tolist()) == (array.shape, array.dtype, array.tolist())


def test_the_format_of_bytes():
    """Each element is a little-endian u32 length and the bytes; `str` becomes UTF-8."""
    array = np.array([b"ab", "é", b""], dtype=object)
    assert encode_bytes(array) == b"\x02\x00\x00\x00ab\x02\x00\x00\x00\xc3\xa9\x00\x00\x00\x00"


@pytest.mark.parametrize(
    ("block", "shape"),
    [
        (b"", (1,)),
        (b"\x01\x00", (1,)),
        (b"\x02\x00\x00\x00a", (1,)),
        (b"\xff\xff\xff\xffa", (1,)),
        (b"\x01\x00\x00\x00a", (2,)),
        (b"\x01\x00\x00\x00a", (0,)),
        (b"\x01\x00\x00\x00ab", (1,)),
        (b"\x01\x00\x00\x00a", (1 << 50,)),
    ],
    ids=["nothing", "half", "short", "huge length", "too few", "too many", "tail", "petabytes"],
)
def test_bytes_that_do_not_fit_are_refused(block, shape):
    """A block that is shorter or longer than its shape says is the client's error."""
    with pytest.raises(InvalidRequest, match=r"BYTES tensor of shape"):
        decode_bytes(block, shape)


@given(st.binary(max_size=60), st.integers(0, 5))
def test_no_block_does_worse_than_be_refused(block, count):
    """Any bytes either decode to exactly themselves or are an InvalidRequest."""
    try:
        decoded = decode_bytes(block, (count,))
    except InvalidRequest:
        return
    assert encode_bytes(decoded) == block


def test_decoded_elements_are_copies():
    """The memory of the block may be used again afterwards."""
    block = bytearray(struct.pack("<I", 1) + b"a")
    decoded = decode_bytes(memoryview(block), (1,))
    block[-1] = ord("z")
    assert decoded.tolist() == [b"a"]


def test_every_bf16_comes_back():
    """All 65536 patterns survive the way to float32 and back; a NaN stays one."""
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    values = bf16_to_float32(bits)
    upper_halves = np.frombuffer(
        b"".join(struct.pack("<HH", 0, b) for b in range(2**16)), np.float32
    )
    assert np.array_equal(values, upper_halves, equal_nan=True)
    back = float32_to_bf16(values)
    finite = ~np.isnan(values)
    assert np.array_equal(back[finite], bits[finite])
    assert np.isnan(bf16_to_float32(back[~finite])).all()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bf16_rounds_to_nearest_even(value):
    """No neighbouring pattern is nearer, and of two equally near ones the even one is taken."""
    bits = int(float32_to_bf16(np.array([value], np.float32))[0])
    low = struct.unpack("<I", struct.pack("<f", value))[0] >> 16
    distances = {pattern: abs(value - bf16_number(pattern)) for pattern in (low, low + 1)}
    nearest = [p for p, distance in distances.items() if distance == min(distances.values())]
    assert bits == min(nearest, key=lambda pattern: pattern % 2)


def bf16_number(bits: int) -> float:
    """Return what a pattern stands for; one step beyond the largest counts as 2**128."""
    number = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return math.copysign(2.0**128, number) if math.isinf(number) else number


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (0, 3),
        (2, 2),
    ],
)
def test_bf16_keeps_shapes(shape):
    """A scalar stays a scalar, and nothing stays nothing."""
    bits = float32_to_bf16(np.ones(shape, np.float32))
    assert (bits.shape, bits.dtype) == (shape, np.uint16)
    assert bf16_to_float32(bits).shape == shape


@pytest.mark.parametrize(
    ("one", "other", "can_be"),
    [
        ((), (), True),
        ((2, -1), (-1, 3), True),
        ((2, 3), (2, 4), False),
        ((2,), (2, -1), False),
    ],
)
def test_shapes_agree_where_both_are_known(one, other, can_be):
    """A free dimension may be any; a missing one may not."""
    assert agree(one, other) is agree(other, one) is can_be
