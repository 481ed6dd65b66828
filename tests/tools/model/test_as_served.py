"""A model is measured as it is served, in a process of its own, with rows of many lengths."""

import multiprocessing
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from builders.graphs import masked_mean
from builders.histograms import histogram_of
from ge_backend.errors import ConfigError
from ge_backend.model.layout.layout import Layout
from ge_backend.tensors import DATA_TYPES
from ge_tools.model.as_served import (
    Load,
    Measured,
    check_measurable,
    drawn_sizes,
    log_normal,
    measured,
)
from ge_tools.model.offline import open_offline
from ge_tools.model.ways import Way

HERE = Way(engine="", precision="origin")
TWO = {"length": histogram_of({20: 3, 60: 1})}


def load(**more):
    return Load(**{"at_once": 4, "seconds": 0.5, "axes": ("length",), "traffic": TWO, **more})


@pytest.fixture
def config(model):
    """Return a function that gives the configuration of `tiny`."""

    def config(**behaviour):
        with open_offline(model(**behaviour)) as opened:
            return opened.config

    return config


def test_figures_of_a_model_that_takes_known_time(config):
    """A run takes 10 ms, whatever is in it, and four requests at once share one."""
    found = measured(config(cost_ms={"*": 10}), HERE, load(), None)
    assert isinstance(found, Measured)
    assert 50 < found.requests_per_s < 401
    assert 0.010 <= found.p50_s <= found.p99_s
    assert found.memory_bytes > 10 << 20
    assert found.bucketed


def test_a_way_that_pads_other_axes_is_not_compared(config):
    """Its rows would be others; what to do is said."""
    said = measured(config(), HERE, load(axes=("other",)), None)
    assert "it would pad length, where the model as configured pads other" in said


def test_a_way_that_cannot_be_opened_says_why(config):
    """As its load would."""
    way = replace(HERE, buckets=(("buckets.length", "none"),))
    assert "'none'" in measured(config(), way, load(), None)


def test_a_crash_is_only_its_own(config):
    """The command goes on with the others."""

    def kill():
        while not (children := multiprocessing.active_children()):
            time.sleep(0.01)
        children[0].kill()

    given = config(cost_ms={"*": 10})
    killer = threading.Thread(target=kill)
    killer.start()
    assert measured(given, HERE, load(seconds=60), None) == "its process died"
    killer.join()


def test_a_real_engine_answers_masked_rows(tmp_path, cache):
    """The mask is made up as all ones, since clients send it."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "encoder"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(masked_mean())
    (folder / "config.pbtxt").write_text('backend: "ge"\nmax_batch_size: 4\n')
    with open_offline(folder, device="cpu") as opened:
        config, axes = opened.config, opened.layout.axes
    traffic = dict.fromkeys(axes, log_normal(64))
    way = Way(engine="onnxruntime", precision="origin")
    found = measured(config, way, load(axes=axes, traffic=traffic), cache)
    assert isinstance(found, Measured)
    assert found.requests_per_s > 0


def layout(axes=("length",), limits=None, **more):
    return Layout(batched=True, axes=axes, limits=limits or {}, inputs=(), outputs=(), **more)


def test_sizes_come_as_often_as_in_the_traffic():
    """In another order than by size, within what the graph takes, and the same at every call."""
    found = drawn_sizes(TWO, layout())
    share = found.count((20,)) / len(found)
    assert set(found) == {(20,), (60,)}
    assert 0.6 < share < 0.9
    assert found != sorted(found)
    assert found == drawn_sizes(TWO, layout())
    assert set(drawn_sizes(TWO, layout(limits={"length": 50}))) == {(20,), (50,)}
    assert set(drawn_sizes(TWO, layout(least={"length": 30}))) == {(30,), (60,)}
    assert set(drawn_sizes({}, layout(axes=()))) == {()}


def test_made_up_lengths_are_mostly_short():
    """None is beyond the largest."""
    sizes = log_normal(128)
    values = [value for value, count in sizes.points() for _ in range(count)]
    assert 10 < np.median(values) < 40
    assert 64 < max(values) <= 128
    assert log_normal(1).points() == [(1, sizes.total)]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"states": ("h",)}, "carry states"),
        ({"concatenated": True}, "are concatenated"),
        ({"inputs": [SimpleNamespace(dtype=DATA_TYPES["BYTES"])]}, "texts or files"),
    ],
)
def test_what_cannot_be_made_up(more, why):
    """It is said of the model by its name."""
    with pytest.raises(ConfigError, match=f"model 'm' cannot be measured .*{why}"):
        check_measurable(replace(layout(), **more), "m")
