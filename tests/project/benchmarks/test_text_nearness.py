"""The table of how near scores are has the figures of a model's own scores."""

import numpy as np
import pytest
import torch
from tools.probes.text_nearness import WAYS, lines, main

from builders.language import make


def test_each_way_is_compared_with_both_others():
    """Of two tokens, each with half the chance; one way is off in the first row."""
    even = torch.full((2, 2), 0.5).log()
    off = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
    found = lines(np.array([1, 0]), {"fp32": even, "bf16": even, "int8": off})
    assert found[2:] == [
        "| `fp32` | 0.0000 | 0.0000 | 2.00 |",
        "| `bf16` | 0.0000 | 0.0000 | 2.00 |",
        "| `int8` | 0.2554 | 0.2554 | 1.11 |",
    ]


def test_a_checkpoint_is_read_in_every_way(tmp_path, capsys):
    """And the further one is the one in eight bits."""
    pytest.importorskip("openvino")
    make(tmp_path, "llama", hidden_size=64, intermediate_size=96, initializer_range=0.2)
    main([str(tmp_path)])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[3:]]
    assert [row[0] for row in rows] == [f"| `{way}`" for way in WAYS]
    assert 0 < float(rows[2][1]) < 0.05
