"""The cache holds keys and values where it was told, layer by layer."""

import os
import subprocess
import sys

import torch

from builders.pages import ROOT
from ge_text.torch.cache import KeyValueShape, PagedCache

SHAPES = (
    KeyValueShape(heads=2, key_dim=3, value_dim=3),
    KeyValueShape(heads=1, key_dim=4, value_dim=2),
)

# Writes a block in the middle of each of 32 tensors of 16 MiB; prints KiB: written and taken.
LARGE = """
from pathlib import Path
import torch
from ge_text.torch.cache import KeyValueShape, PagedCache

def anonymous():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Anonymous:")).split()[1])

before = anonymous()
held = PagedCache(
    (KeyValueShape(heads=4, key_dim=64, value_dim=64),) * 16,
    block_size=32, num_blocks=512, dtype=torch.float32, device=torch.device("cpu"),
)
for tensor in (*held.keys, *held.values):
    tensor[256].fill_(1.0)
print(32 * held.keys[0][1].nbytes // 1024, anonymous() - before)
"""


def cache():
    return PagedCache(
        SHAPES, block_size=2, num_blocks=4, dtype=torch.float32, device=torch.device("cpu")
    )


def test_a_new_cache_holds_zeros():
    """What no token has written is multiplied by zero, which only numbers survive."""
    empty = cache()
    assert [tuple(keys.shape) for keys in empty.keys] == [(4, 2, 2, 3), (4, 1, 2, 4)]
    assert [tuple(values.shape) for values in empty.values] == [(4, 2, 2, 3), (4, 1, 2, 2)]
    assert not any(tensor.any() for tensor in (*empty.keys, *empty.values))


def test_a_large_cache_takes_the_memory_of_what_is_written():
    """A block of each layer, not 2 MiB of it, though an executor's glibc asks for huge pages."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT / "backend/ge",
        env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    )
    written, taken = map(int, done.stdout.split())
    assert written <= taken < 4 * written


def test_layers_of_several_shapes_lie_side_by_side():
    """Each has its own heads and sizes; one's tokens do not touch another's."""
    held = cache()
    key, value = torch.full((1, 1, 4), 5.0), torch.full((1, 1, 2), 6.0)
    held.write(1, torch.tensor([5]), key, value)
    assert held.keys[1][2, 0, 1].tolist() == [5.0] * 4
    assert held.values[1][2, 0, 1].tolist() == [6.0] * 2
    assert held.keys[1].sum() == 20
    assert not held.keys[0].any()


def test_saved_blocks_do_not_change_with_the_cache():
    """Their places are given to others at once."""
    held = cache()
    held.keys[0][1] = 1.0
    held.values[1][3] = 2.0
    saved = held.save([1, 3])
    assert saved.nbytes == 2 * 2 * 4 * sum(shape.elements for shape in SHAPES)
    for tensor in (*held.keys, *held.values):
        tensor.fill_(9.0)
    held.restore(saved, [0, 2])
    assert held.keys[0].amax((1, 2, 3)).tolist() == [1.0, 9.0, 0.0, 9.0]
    assert held.values[1].amax((1, 2, 3)).tolist() == [0.0, 9.0, 2.0, 9.0]
