"""Several tensors in one block."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ge_backend.engines.torch.packing import ALIGNMENT, Packing  # noqa: E402

KINDS = {
    "flags": (torch.bool, (3,)),
    "empty": (torch.int64, (0, 4)),
    "scalar": (torch.float64, ()),
    "half": (torch.bfloat16, (2, 2)),
    "wide": (torch.uint64, (2,)),
}


def test_tensors_lie_side_by_side():
    """Each has its type and shape, aligned as if it were allocated alone, and none overlap."""
    packing = Packing(KINDS)
    block = torch.zeros(packing.nbytes, dtype=torch.uint8)
    tensors = packing.tensors(block)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()} == KINDS
    offsets = [tensors[name].data_ptr() - block.data_ptr() for name in KINDS if name != "empty"]
    assert not any(offset % ALIGNMENT for offset in offsets)
    for byte, name in enumerate(("flags", "scalar", "half", "wide"), start=1):
        tensors[name].reshape(-1).view(torch.uint8).fill_(byte)
    assert torch.bincount(block.int()).tolist()[1:] == [3, 8, 8, 16]


def test_arrays_are_the_same_memory():
    """A host block is read and written by numpy, BF16 as bits."""
    packing = Packing(KINDS)
    block = torch.zeros(packing.nbytes, dtype=torch.uint8)
    arrays = packing.arrays(block)
    arrays["half"][:] = 0x3F80
    arrays["scalar"][...] = 2.5
    assert arrays["half"].dtype == np.uint16
    assert packing.tensors(block)["half"].tolist() == [[1, 1], [1, 1]]
    assert packing.tensors(block)["scalar"].item() == 2.5


def test_no_tensors_are_one_byte():
    """Devices do not allocate nothing."""
    assert Packing({}).nbytes == 1
    assert Packing({"empty": (torch.float32, (0,))}).nbytes == 1


def test_neighbours_are_one_part_of_the_block():
    """Parts hold the tensors that are asked for, and the gaps between neighbours."""
    packing = Packing(KINDS)
    end = packing.nbytes
    assert list(packing.spans(KINDS)) == [slice(0, end)]
    assert list(packing.spans({"flags", "empty"})) == [slice(0, ALIGNMENT)]
    assert list(packing.spans({"flags", "half", "wide"})) == [
        slice(0, 3),
        slice(2 * ALIGNMENT, end),
    ]
    assert list(packing.spans({"empty"})) == []
    assert list(packing.spans(())) == []


def test_first_rows_are_parts_of_their_own():
    """One for each tensor that has anything."""
    packing = Packing(
        {"x": (torch.float32, (4, 3)), "e": (torch.bool, (0, 4)), "n": (torch.int64, (2,))}
    )
    assert list(packing.first_rows({"x", "e", "n"}, 2)) == [
        slice(0, 24),
        slice(ALIGNMENT, ALIGNMENT + 16),
    ]
    assert list(packing.first_rows({"n"}, 1)) == [slice(ALIGNMENT, ALIGNMENT + 8)]


def test_rows_of_all_tensors_are_counted():
    """Along their first dimensions; a scalar is one."""
    kinds = {"x": (torch.float32, (4, 3)), "n": (torch.int64, (4,)), "scalar": (torch.int64, ())}
    assert Packing(kinds).num_rows == 9
