"""The sequence benchmark: what it serves and what it sends."""

import json

import numpy as np
from benchmarks.bench_sequences import STEPS, SYSTEMS, TRAFFIC, scenario


def test_all_models_have_the_same_step(tmp_path):
    """One file, two ways to keep the state; only ours has the host's state block."""
    made = scenario(tmp_path, 8)
    assert {folder.name for folder in made.repository.iterdir()} == {s.model for s in SYSTEMS}
    ours, rival = (made.repository / name for name in ("ge_2", "state_dict_1"))
    assert (ours / "1" / "model.onnx").read_bytes() == (rival / "1" / "model.onnx").read_bytes()
    assert (rival / "1" / "model.py").is_file()
    assert "h_next" in (ours / "config.pbtxt").read_text()
    assert "h_next" not in (rival / "config.pbtxt").read_text()
    for inline in ("ge_inline", "ge_inline_2"):
        assert '"inline"' in (made.repository / inline / "config.pbtxt").read_text()


def test_a_sequence_starts_once_and_ends_once(tmp_path):
    """The first and the last step are marked, for the host, and the last answer is known."""
    made = scenario(tmp_path, 8)
    pools = made.pools("")
    assert set(pools) == {f"{system.model}/{TRAFFIC}" for system in SYSTEMS}
    pool = pools[f"ge_1/{TRAFFIC}"]
    steps = [json.loads(step[step.index(b"{") : step.rindex(b"}") + 1]) for step in pool.scripts[6]]
    given = [step["parameters"] for step in steps]
    flags = [(each["sequence_start"], each["sequence_end"]) for each in given]
    assert flags == [(True, False), *[(False, False)] * (STEPS - 2), (False, True)]
    assert {each["sequence_id"] for each in given} == {7}
    assert np.frombuffer(pool.scripts[6][3][-256:], np.float32).tolist() == [3.0] * 64
    assert pool.answers[0].shape == (8,)
