"""What several of these ask of."""

import contextlib

import pytest


@pytest.fixture
def bench(sim, tmp_path):
    """The bench of an NPU's questions on a module's simulator, which nothing has misused after."""
    from tools.probes.npu_probes import Bench

    folder = tmp_path / "bench"
    folder.mkdir()
    with contextlib.closing(Bench(folder, 0)) as bench:
        yield bench
    assert sim.allocations() == []
    sim.check()
