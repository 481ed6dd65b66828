"""How long axes may be is found out from the largest bucket on, and only where it is certain."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from builders.graphs import POSITIONS, TABLE, WIDTH, graph, token_rows, with_positions
from ge_backend.buckets.axis import listed_axis
from ge_backend.buckets.grid import BucketGrid
from ge_backend.config.model import ModelConfig
from ge_backend.device.base import GraphSource
from ge_backend.errors import ExecutorLost
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.layout.layout import build_layout
from ge_backend.serving import limits
from ge_backend.serving.limits import learned_limits
from ge_backend.warmup.shaped import ShapedModel
from ge_backend.warmup.store import Store

KEY = ["a model"]


def ids_and(nodes, constants):
    """Take ids [batch, length] -> y [batch, length, WIDTH]: the table's rows and something more."""
    return graph(
        [helper.make_node("Gather", ["table", "ids"], ["rows"]), *nodes],
        [("ids", TensorProto.INT64, ["batch", "length"])],
        [("y", TensorProto.FLOAT, ["batch", "length", WIDTH])],
        [("table", TABLE), *constants],
    )


def looked_up_positions():
    """Positions are counted and looked up in a table."""
    positions = np.ones((POSITIONS, WIDTH), np.float32)
    nodes = [
        helper.make_node("Shape", ["ids"], ["shape"], start=1, end=2),
        helper.make_node("Squeeze", ["shape"], ["length"]),
        helper.make_node("Range", ["zero", "length", "one"], ["counted"]),
        helper.make_node("Gather", ["positions", "counted"], ["some"]),
        helper.make_node("Add", ["rows", "some"], ["y"]),
    ]
    constants = [("positions", positions), ("zero", np.array(0)), ("one", np.array(1))]
    return ids_and(nodes, constants)


def even_sizes():
    """Only even lengths run: what is halved and doubled is added to what it was."""
    nodes = [
        helper.make_node("Transpose", ["rows"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MaxPool", ["turned"], ["half"], kernel_shape=[2], strides=[2]),
        helper.make_node("Concat", ["half", "half"], ["whole"], axis=2),
        helper.make_node("Add", ["turned", "whole"], ["sum"]),
        helper.make_node("Transpose", ["sum"], ["y"], perm=[0, 2, 1]),
    ]
    return ids_and(nodes, [])


@pytest.fixture
def opened(tmp_path):
    """A function that loads a graph and returns the model that it is served as."""
    sessions = []

    def open_(model, *, largest=4, store=None):
        (tmp_path / "model.onnx").write_bytes(model)
        ids = {
            "name": "ids",
            "data_type": "TYPE_INT64",
            "dims": [-1],
            "allow_ragged_batch": True,
        }
        document = {
            "name": "m",
            "max_batch_size": 4,
            "input": [ids],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1, WIDTH]}],
        }
        config = ModelConfig.read(document, directory=tmp_path, version="1", environment={})
        source = GraphSource.of(tmp_path / "model.onnx")
        session = Session(
            lambda: connect_inline("cpu"), source, arena_bytes=4096, on_restart=lambda: None
        )
        sessions.append(session)
        return ShapedModel(
            config=config,
            session=session,
            layout=build_layout(config, session.signature, static_shapes=False),
            grid=grid(largest),
            store=store or Store(None),
        )

    yield open_
    for session in sessions:
        session.close()


def grid(largest):
    axes = (listed_axis("rows", (1, 4)), listed_axis("length", (2, largest)))
    return BucketGrid(axes=axes, entries=((1, 2), (4, largest)))


def found(opened, model, **given):
    return learned_limits(opened(model, **given), KEY)


@pytest.mark.parametrize("model", [with_positions, looked_up_positions])
@pytest.mark.parametrize("largest", [4, 15, 16, 17, 64])
def test_a_table_of_positions_is_a_limit(opened, model, largest):
    """However far from the largest bucket it lies, and however the graph takes its rows."""
    assert found(opened, model(), largest=largest) == {"length": POSITIONS}


def test_a_length_that_is_tried_may_fail(opened, caplog):
    """Nobody is warned of what was to be found out."""
    assert found(opened, with_positions()) == {"length": POSITIONS}
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]


def test_a_graph_that_takes_any_length_has_no_limit(opened, monkeypatch):
    """Nothing is claimed of what ran."""
    monkeypatch.setattr(limits, "MOST_TRIED", 64)
    assert found(opened, token_rows()) == {}


def test_an_axis_of_one_size_is_not_tried(opened):
    """No request comes that is longer."""
    model = opened(with_positions())
    only = replace(model, layout=replace(model.layout, sizes={"length": 4}))
    assert learned_limits(only, KEY) == {}


def test_sizes_that_fit_now_and_then_are_no_limit(opened):
    """An odd length fails as a table of positions would, and twice as many run."""
    assert found(opened, even_sizes()) == {}


def test_what_was_found_is_kept(opened, tmp_path, monkeypatch):
    """The next start runs nothing for it, also where there is no limit."""
    store = Store(tmp_path / "cache")
    assert found(opened, with_positions(), store=store) == {"length": POSITIONS}
    monkeypatch.setattr(Session, "in_flight", pytest.fail)
    assert found(opened, with_positions(), store=store) == {"length": POSITIONS}
    store.keep_limits(KEY, {})
    assert found(opened, with_positions(), store=store) == {}


def test_an_executor_that_dies_over_a_trial_is_no_limit(opened, monkeypatch):
    """Nothing is known then, and nothing kept; the session goes on with another executor."""

    def lost(_):
        raise ExecutorLost("gone")

    model = opened(with_positions())
    monkeypatch.setattr(Session, "in_flight", lost)
    assert learned_limits(model, KEY) == {}
    monkeypatch.undo()
    model.session.reopen()
    assert learned_limits(model, KEY) == {"length": POSITIONS}
