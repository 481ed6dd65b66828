"""What is known of tensors on the device."""

import itertools

import numpy as np
import pytest

from ge_backend.model.layout.layout import InputLayout, OutputLayout
from ge_backend.serving.batching.device_tensor import BatchRetention, DeviceTensor, fill_byte
from ge_backend.tensors import DATA_TYPES


def test_outputs_that_stay_get_keys_of_their_own():
    """Across the steps of a batch, and of later ones; all are noted for being freed."""
    numbers, keys = itertools.count(1), []
    first, second = (
        BatchRetention({"y": False}, numbers, keys),
        BatchRetention({"y": True}, numbers, keys),
    )
    output = OutputLayout(name="y", dtype=DATA_TYPES["FP32"], dims=(2,), axes=(-1,), names=("",))
    refs = [one.retain(output, (3, 2)) for one in (first, second, first)]
    assert [(ref.key, ref.also_to_host) for ref in refs] == [(1, False), (2, True), (3, False)]
    assert keys == [1, 2, 3]


@pytest.mark.parametrize(
    ("dtype", "fill", "byte"),
    [
        ("FP32", 0.0, 0),
        ("INT64", -1.0, 255),
        ("UINT8", 7.0, 7),
        ("BOOL", 1.0, 1),
        ("INT32", 1.0, -1),
        ("FP32", 1.0, -1),
        ("BF16", 0x3F3F, 0x3F),
        ("BF16", 0x3F80, -1),
    ],
)
def test_padding_that_is_one_byte_over_and_over(dtype, fill, byte):
    """Only that can be written on every device; -1 says that it cannot."""
    item = InputLayout(
        name="x", dtype=DATA_TYPES[dtype], dims=(), axes=(), names=(), fill=fill, made=""
    )
    assert fill_byte(item) == byte


def test_it_is_measured_like_an_array():
    """By its shape, dtype and ndim."""
    tensor = DeviceTensor(shape=(2, 3), dtype=np.dtype(np.float32), rows=())
    assert tensor.ndim == 2
