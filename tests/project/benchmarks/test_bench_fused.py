"""The ensemble benchmark: its texts, and what it sends for one."""

import numpy as np
from benchmarks import bench_fused
from benchmarks.bench_fused import CALLS, STEPS, SYSTEMS, draw_texts, scripts


def test_texts_are_of_very_different_lengths():
    """The same ones every time, from one word up."""
    texts = draw_texts(1)
    lengths = sorted(len(text.split()) for text in texts)
    assert texts == draw_texts(1)
    assert lengths[0] <= 2
    assert lengths[-1] >= 50


def test_three_calls_hand_on_what_the_server_answered(monkeypatch):
    """Each later call has the tensors of an earlier one; the other systems get the text alone."""
    asked = []
    answer = {name: np.ones((1, 2), np.float32) for name in ("hidden", "scores")}
    answer |= {name: np.ones((1, 2), np.int64) for name in ("input_ids", "attention_mask")}
    monkeypatch.setattr(bench_fused, "asked", lambda _, request: asked.append(request) or answer)
    made, scores = scripts(None, "rain")
    assert list(made) == [system.name for system in SYSTEMS]
    assert made[CALLS] == tuple(asked)
    assert [request.split()[1].split(b"/")[3].decode() for request in asked] == list(STEPS)
    assert all(len(script) == 1 for name, script in made.items() if name != CALLS)
    assert scores.tolist() == [1.0, 1.0]
