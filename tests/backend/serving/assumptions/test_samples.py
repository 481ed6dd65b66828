"""Inputs that the model's owner gives show what made-up ones hide."""

import itertools
import re

import numpy as np
import pytest
from onnx import TensorProto, helper

from builders.graphs import graph, row_sums
from builders.opened_graph import opened_graph
from ge_backend.errors import ConfigError
from ge_backend.serving.assumptions import trial as trial_module
from ge_backend.serving.assumptions.completion import whole_document
from ge_backend.serving.assumptions.served import served
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import FAILS, HOLDS

pytest.importorskip("onnxruntime")

NODE = helper.make_node
REAL = TensorProto.FLOAT
COUNT = itertools.count()
HUNDRED = ("hundred", np.float32(100))
LARGE = np.full((1, 3), 500, np.float32)


@pytest.fixture
def look(tmp_path):
    """A function that judges a model that has samples, and files of warm-up."""

    def look_(model, *, samples=(), warmup=(), store=None, **document):
        folder = tmp_path / str(next(COUNT))
        for below, files in (("samples", samples), ("warmup", warmup)):
            (folder / below).mkdir(parents=True)
            for at, content in enumerate(files):
                path = folder / below / f"{at}{'.npz' if below == 'samples' else ''}"
                if isinstance(content, bytes):
                    path.write_bytes(content)
                else:
                    np.savez(path, **content)
        with opened_graph(folder, model, **document) as (session, read):
            store = store or Store(folder / "cache")
            whole = whole_document({"name": "m", **document}, read(), session, store)
            judged = served(read(**whole), session, store)
        return {v.assumption: v for v in judged.verdicts}

    return look_


def mean_of_large():
    """Take x [n, 3] -> y: less the mean of all rows, of what is above a hundred."""
    nodes = [
        NODE("Sub", ["x", "hundred"], ["less"]),
        NODE("Relu", ["less"], ["large"]),
        NODE("ReduceMean", ["large"], ["mean"], axes=[0]),
        NODE("Sub", ["large", "mean"], ["y"]),
    ]
    tensors = [("x", REAL, ["n", 3])], [("y", REAL, ["n", 3])]
    return graph(nodes, *tensors, [HUNDRED])


def kept_less_the_mean():
    """Take x and kept [n, 3] -> new: their sum, less the mean of all rows' new above 1,200."""
    nodes = [
        NODE("Add", ["x", "kept"], ["sum"]),
        NODE("Sub", ["sum", "most"], ["less"]),
        NODE("Relu", ["less"], ["large"]),
        NODE("ReduceMean", ["large"], ["mean"], axes=[0]),
        NODE("Sub", ["sum", "mean"], ["new"]),
        NODE("Identity", ["new"], ["y"]),
    ]
    rows = ["n", 3]
    tensors = [("x", REAL, rows), ("kept", REAL, rows)], [("new", REAL, rows), ("y", REAL, rows)]
    return graph(nodes, *tensors, [("most", np.float32(1200))])


def least():
    """Take frames -> the least of them over time, of what is above a hundred."""
    nodes = [
        NODE("Max", ["frames", "hundred"], ["large"]),
        NODE("ReduceMin", ["large"], ["least"], axes=[1], keepdims=0),
        NODE("Cast", ["attention_mask"], ["real"], to=REAL),
        NODE("ReduceSum", ["real", "one"], ["count"], keepdims=1),
        NODE("Min", ["count", "zero"], ["none"]),
        NODE("Add", ["least", "none"], ["y"]),
    ]
    return graph(
        nodes,
        [
            ("frames", REAL, ["batch", "time", 3]),
            ("attention_mask", TensorProto.INT64, ["batch", "time"]),
        ],
        [("y", REAL, ["batch", 3])],
        [HUNDRED, ("one", np.array([1])), ("zero", np.float32(0))],
    )


@pytest.mark.parametrize(
    "samples",
    [
        [{"x": LARGE}],
        [{"x": 2 * LARGE}, {"x": LARGE}],
        [{"x": np.arange(900, dtype=np.float32)[::-1]}],
    ],
    ids=["one row", "two files", "many rows"],
)
def test_rows_that_only_real_values_touch(look, samples):
    """Beside each other, or beside made-up ones where there are too few."""
    assert look(mean_of_large())["rows"].verdict == HOLDS
    verdict = look(mean_of_large(), samples=[{"x": s["x"].reshape(-1, 3)} for s in samples])["rows"]
    assert verdict.verdict == FAILS
    assert verdict.tested.endswith(
        "also with 2 samples of the model"
        if len(samples) > 1
        else "also with 1 sample of the model"
    )


STATES = {
    "max_batch_size": 4,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}],
    "sequence_batching": {
        "oldest": {},
        "state": [
            {
                "input_name": "kept",
                "output_name": "new",
                "data_type": "TYPE_FP32",
                "dims": [3],
            }
        ],
    },
}


def test_states_that_only_real_values_mix(look):
    """The third step is the first that mixes rows: its sum is 1,500."""
    assert look(kept_less_the_mean(), **STATES)["states"].verdict == HOLDS
    real = [{"x": LARGE, "kept": np.zeros((1, 3), np.float32)}]
    verdict = look(kept_less_the_mean(), samples=real, **STATES)["states"]
    assert verdict.verdict == FAILS
    assert "3 steps" in verdict.tested
    assert verdict.tested.endswith("also with 1 sample of the model")
    small = [{"x": LARGE / 100, "kept": np.zeros((1, 3), np.float32)}]
    assert look(kept_less_the_mean(), samples=small, **STATES)["states"].verdict == HOLDS


def test_what_real_rows_do_not_change_holds(look):
    """The verdict says that samples were used."""
    rows = np.random.default_rng(0).standard_normal((1, 9, 4)).astype(np.float32)
    found = look(row_sums(), samples=[{"x": rows}])
    assert found["rows"].verdict == HOLDS
    assert "1 sample" in found["rows"].tested


@pytest.mark.parametrize("mask", [{}, {"attention_mask": np.ones((1, 6), np.int64)}])
def test_padding_that_only_real_values_show(look, mask):
    """With the mask that is sent, or the one that is made for them."""
    assert look(least())["padding"].verdict == HOLDS
    frames = np.full((1, 6, 3), 300, np.float32)
    verdict = look(least(), samples=[{"frames": frames, **mask}])["padding"]
    assert verdict.verdict == FAILS
    assert "1 sample" in verdict.tested


def test_files_of_the_hosts_own_warm_up_count(look):
    """They are one row each; requests of random bytes or zeros alone are no samples."""
    block = {"data_type": "TYPE_FP32", "dims": ["3"]}
    real = [{"inputs": {"x": {**block, "input_data_file": "0"}}}]
    others = [{"inputs": {"x": {**block, f"{kind}_data": True}}} for kind in ("zero", "random")]
    found = look(mean_of_large(), warmup=[LARGE.tobytes()], model_warmup=[*others, *real])
    assert found["rows"].verdict == FAILS
    assert look(mean_of_large(), model_warmup=others)["rows"].verdict == HOLDS


def test_a_file_of_warm_up_stays_in_the_models_folder(look):
    """As every name that a configuration gives."""
    tensor = {"data_type": "TYPE_FP32", "dims": [3], "input_data_file": "../../0"}
    with pytest.raises(ConfigError, match="input_data_file of model_warmup"):
        look(mean_of_large(), model_warmup=[{"inputs": {"x": tensor}}])


UNFIT = {
    "not used: .*": b"no archive",
    "it has an input 'z'; the graph's are x": {"z": LARGE},
    "input 'x' is float64": {"x": LARGE.astype(np.float64)},
    r"input 'x' is float32 \[3\]; the graph takes FP32": {"x": LARGE[0]},
    "it has no input": {},
    "bytes; up to": {"x": np.zeros((1 << 21, 3), np.float32)},
}


@pytest.mark.parametrize("said", UNFIT)
def test_what_is_no_sample_of_the_graph_is_left_out(look, caplog, said):
    """With a line in the log; the model is tested on made-up values."""
    verdict = look(mean_of_large(), samples=[UNFIT[said]])["rows"]
    assert verdict.verdict == HOLDS
    assert "sample" not in verdict.tested
    (line,) = [text for text in caplog.messages if text.startswith("sample ")][:1]
    assert "not used" in line
    assert re.search(said, line)


def test_inputs_of_one_sample_agree(look, caplog):
    """Which axis does not is said."""
    frames, mask = np.ones((1, 6, 3), np.float32), np.ones((1, 5), np.int64)
    found = look(least(), samples=[{"frames": frames, "attention_mask": mask}])
    assert "sample" not in found["padding"].tested
    assert any("axis 'time' of input 'attention_mask' is 5, and 6" in m for m in caplog.messages)


def test_a_sample_that_the_graph_refuses_leaves_the_verdict(look, caplog):
    """It is said; what made-up values show stays."""
    fixed = graph(
        [NODE("Gather", ["table", "ids"], ["y"])],
        [("ids", TensorProto.INT64, ["n", "m"])],
        [("y", REAL, ["n", "m", 2])],
        [("table", np.ones((80, 2), np.float32))],
    )
    found = look(fixed, samples=[{"ids": np.full((1, 2), 500)}])
    assert found["rows"].verdict == HOLDS
    assert any("rows of a sample are not compared" in text for text in caplog.messages)


def test_new_samples_are_tested_anew(look, tmp_path):
    """What was kept depends on them."""
    store = Store(tmp_path / "cache")
    assert look(mean_of_large(), store=store)["rows"].verdict == HOLDS
    assert look(mean_of_large(), store=store, samples=[{"x": LARGE}])["rows"].verdict == FAILS
    assert look(mean_of_large(), store=store)["rows"].verdict == HOLDS


def test_samples_have_time_of_their_own(look, monkeypatch):
    """So that a slow one costs no verdict on made-up values."""
    given = []
    extend = trial_module.Trial.extend
    monkeypatch.setattr(trial_module.Trial, "extend", lambda self: given.append(extend(self)))
    look(mean_of_large())
    assert given == []
    look(mean_of_large(), samples=[{"x": LARGE}])
    assert given != []
