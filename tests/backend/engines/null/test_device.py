"""The null device: what it computes and refuses; the contract tests the rest."""

import json

import numpy as np
import pytest

from ge_backend.device.base import GraphSource
from ge_backend.engines.null.device import NullDevice
from ge_backend.errors import GraphFailed, ModelError

X = {"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def load(folder, device, **given):
    path = folder / "model.null"
    path.write_text(json.dumps({"inputs": [X], "outputs": [], **given}))
    return device.load(GraphSource.of(path))


def output(dims, dtype="FP32", **behaviour):
    return {"outputs": [{"name": "y", "dtype": dtype, "dims": dims, **behaviour}]}


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        (["batch"], (2,)),
        (["length", "batch"], (3, 2)),
        (["batch", 384], (2, 384)),
        ([-1], (1,)),
        ([], ()),
    ],
)
def test_zeros_take_their_shape_from_the_inputs(tmp_path, dims, shape):
    """A named axis has the input's size; an axis that no input has is 1."""
    graph = load(tmp_path, NullDevice(), **output(dims))
    result = graph.run({"x": ROWS}, {}, exclusive=False)["y"]
    assert result.shape == shape
    assert not result.any()


def test_zeros_of_bytes_are_empty(tmp_path):
    """A BYTES output holds empty strings."""
    graph = load(tmp_path, NullDevice(), **output(["batch"], "BYTES"))
    assert graph.run({"x": ROWS}, {}, exclusive=False)["y"].tolist() == [b"", b""]


def test_sums_leave_the_axes_of_the_output(tmp_path):
    """The axes beyond the output's rank are summed over."""
    graph = load(tmp_path, NullDevice(), **output(["batch"], "INT64", compute="sum", of="x"))
    assert graph.run({"x": ROWS}, {}, exclusive=False)["y"].tolist() == [3, 12]


def test_static_shapes_must_be_prepared(tmp_path):
    """Shapes that were not prepared are refused, and named."""
    graph = load(tmp_path, NullDevice(), static_shapes=True)
    assert graph.shape_policy.prepared
    graph.prepare({"x": ROWS})
    graph.run({"x": ROWS}, {}, exclusive=False)
    with pytest.raises(GraphFailed, match=r"x \(1, 3\) was not prepared"):
        graph.run({"x": ROWS[:1]}, {}, exclusive=False)


def test_fixed_and_shared_axes_are_checked(tmp_path):
    """A fixed size and the equality of axes with one name hold for every run."""
    inputs = [X, {"name": "m", "dtype": "FP32", "dims": ["batch", 4]}]
    graph = load(tmp_path, NullDevice(), inputs=inputs)
    right = np.zeros((2, 4), np.float32)
    graph.run({"x": ROWS, "m": right}, {}, exclusive=False)
    for wrong in (np.zeros((2, 5), np.float32), np.zeros((1, 4), np.float32)):
        with pytest.raises(GraphFailed, match="input 'm'"):
            graph.run({"x": ROWS, "m": wrong}, {}, exclusive=False)


def test_runs_take_as_long_as_the_table_says(tmp_path, monkeypatch):
    """The shape of the first input decides; `*` is every other shape."""
    slept = []
    monkeypatch.setattr("ge_backend.engines.null.device.time.sleep", slept.append)
    graph = load(tmp_path, NullDevice(), cost_ms={"2x3": 3.0, "*": 0.5})
    graph.run({"x": ROWS}, {}, exclusive=False)
    graph.run({"x": ROWS[:1]}, {}, exclusive=False)
    assert slept == [0.003, 0.0005]


@pytest.mark.parametrize(
    "behaviour",
    [{"compute": "product", "of": "x"}, {"compute": "sum"}, {"compute": "echo", "of": "z"}],
)
def test_an_unknown_computation_is_refused(tmp_path, behaviour):
    """A computation of nothing, or none of ours, is a ModelError."""
    with pytest.raises(ModelError, match="echo, sum or accumulate of an input"):
        load(tmp_path, NullDevice(), **output(["batch"], **behaviour))


def test_workspace_grows_with_the_shape(tmp_path):
    """Plans of workspace have a figure to work with: one byte for each input element."""
    assert load(tmp_path, NullDevice()).workspace_bytes({"x": (4, 5), "m": (2,)}) == 22
