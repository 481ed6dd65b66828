"""The tests' null device counts what happens, here and in executors."""

import json

import numpy as np
import pytest

from fakes.null_device import NullDevice
from ge_backend.device.base import GraphSource, open_device
from ge_backend.errors import GraphFailed

X = {"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}
Y = {"name": "y", "dtype": "FP32", "dims": ["batch"]}
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def load(folder, device, outputs=()):
    path = folder / "model.null"
    path.write_text(json.dumps({"inputs": [X], "outputs": list(outputs)}))
    return device.load(GraphSource.of(path))


def test_it_is_what_null_means_here():
    """Tests that open a device by its name get this one."""
    assert isinstance(open_device("null:1"), NullDevice)


def test_counts_everything(tmp_path):
    """Loads, preparations, runs, bytes and closes are counted over all graphs."""
    device = NullDevice()
    for _ in range(2):
        graph = load(tmp_path, device, [Y])
        graph.prepare({"x": ROWS})
        graph.run({"x": ROWS}, {}, exclusive=True)
        graph.run({"x": ROWS}, {}, exclusive=False)
    graph.close()
    counts = device.counts
    assert (counts.loads, counts.prepares, counts.runs, counts.closes) == (2, 2, 4, 1)
    assert (counts.exclusive_runs, counts.running, counts.most_running) == (2, 0, 1)
    assert (counts.bytes_in, counts.bytes_out) == (4 * 24, 4 * 8)


def test_a_failed_run_is_not_counted_and_not_running(tmp_path):
    """Only finished runs count."""
    device = NullDevice()
    graph = load(tmp_path, device)
    with pytest.raises(GraphFailed):
        graph.run({}, {}, exclusive=False)
    assert (device.counts.runs, device.counts.running, device.counts.bytes_in) == (0, 0, 0)
