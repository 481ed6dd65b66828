"""Attention in place finds what attention over gathered keys finds."""

import numpy as np
import pytest
import torch

from ge_text.models.batch import Group
from ge_text.torch import block_plan
from ge_text.torch.attention import Attend, RowAttention
from ge_text.torch.block_attention import BlockAttention
from ge_text.torch.block_plan import plan_blocks

BLOCK, HEADS, KEY_HEADS, DIM = 4, 6, 2, 8
TABLES = {
    "scattered": ([[7, 2, 9], [12], [4, 5, 14, 1]], [9, 3, 16]),
    "neighbours": ([[1, 2], [3, 4], [5, 6]], [8, 8, 5]),
    "shared": ([[1, 2, 3], [1, 2, 4], [1, 2, 3]], [11, 12, 9]),
    "padding": ([[3, 2], [0], [0]], [8, 0, 0]),
    "alone": ([[6, 3, 4]], [10]),
}


@pytest.fixture(autouse=True, params=[0, 3])
def everything_in_place(request, monkeypatch):
    """Also where it does not pay, with and without bridges over gaps."""
    monkeypatch.setattr(block_plan, "FIXED_BYTES", -(10**9))
    monkeypatch.setattr(block_plan, "RUN_BYTES", request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("name", TABLES)
def test_queries_find_what_they_find_in_gathered_keys(name, queries, softcap, window, dtype):
    """Whoever shares a block, whatever lies between; padding finds something finite."""
    tables, lengths = TABLES[name]
    rows, width = len(tables), max(map(len, tables))
    padded = np.array([[*table, *[0] * (width - len(table))] for table in tables])
    group = Group(rows=rows, query=queries, tables=padded, lengths=np.array(lengths))
    generator = torch.Generator().manual_seed(7)
    keys, values = (
        torch.randn(16, KEY_HEADS, BLOCK, DIM + more, generator=generator).to(dtype)
        for more in (0, 3)
    )
    query = torch.randn(rows * queries, HEADS, DIM, generator=generator).to(dtype)
    ends = np.maximum(queries, lengths)[:, None]
    positions = torch.from_numpy(ends - queries + np.arange(queries))
    how = Attend(scale=DIM**-0.5, window=window, softcap=softcap)
    gathered = RowAttention(
        tables=torch.from_numpy(padded), positions=positions, length=width * BLOCK, alone=False
    )
    plan = plan_blocks(group, BLOCK, 1)
    found = BlockAttention(plan, positions).attend(how, query, keys, values)
    expected = gathered.attend(how, query, keys, values)
    assert found.dtype == dtype
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(found, expected, **close)
