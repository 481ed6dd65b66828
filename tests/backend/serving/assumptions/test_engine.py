"""Whether an engine computes what its file says shows beside another engine's answers."""

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from builders import engine_faults as faults
from builders.graphs import TABLE, WIDTH, graph, masked_mean
from builders.opened_graph import opened_graph
from ge_backend.errors import DeviceUnavailable, Unsupported
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.serving.assumptions.completion import whole_document
from ge_backend.serving.assumptions.engine import Compared, check_engine, with_engine_verdict
from ge_backend.serving.assumptions.served import served
from ge_backend.serving.assumptions.trial import OutOfTime, Trial
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import FAILS, HOLDS, NOT_TESTED, TAKEN

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

from ge_backend.engines.ov.arithmetic import has_int8
from ge_backend.engines.ov.model import has_bf16

needs_bf16 = pytest.mark.skipif(not has_bf16(), reason="nothing is computed in BF16 here")
COUNT = itertools.count()


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """A function that tests the engine of a model: its verdict, and how often another was asked."""
    from ge_backend.engines.ov import graph, workarounds

    def judge(
        model,
        *,
        engine="openvino",
        precision="origin",
        mended=True,
        store=None,
        found=None,
        sample=None,
        **said,
    ):
        if not mended:
            monkeypatch.setattr(workarounds, "WORKAROUNDS", {})
            monkeypatch.setattr(graph, "cut_angles", lambda _: None)
        folder = tmp_path / str(next(COUNT))
        (folder / "samples").mkdir(parents=True)
        if sample is not None:
            np.savez(folder / "samples" / "one.npz", **sample)
        asked = []
        kept = store or Store(None)
        how = {"engine": engine, "precision": precision}
        with opened_graph(folder, model, **how, **said) as (session, read):
            config = read(**whole_document({"name": "m", **said}, read(), session, kept))

            def reference(name, precision):
                asked.append(name)
                if found is not None:
                    raise found
                source = replace(session.source, engine=name, precision=precision)
                connect = functools.partial(connect_inline, "cpu", 0, 0)
                return Session(connect, source, arena_bytes=1 << 16, on_restart=print)

            judged = served(config, session, kept)
            if store is not None:
                with_engine_verdict(config, session, kept, judged, reference)
            judged = with_engine_verdict(config, session, kept, judged, reference)
            verdict = next((v for v in judged.verdicts if v.assumption == "engine"), None)
            check = functools.partial(check_engine, config, session, judged)
            if verdict is not None and not verdict.holds:
                with pytest.raises(Unsupported, match=r"answers otherwise than .*, or 'assume'"):
                    check()
            else:
                check()
        return verdict, asked

    return judge


FRAMES = {
    "max_batch_size": 8,
    "input": [{"name": "frames", "data_type": "TYPE_FP32", "dims": [-1, faults.WIDTH]}],
    "output": [{"name": "last", "data_type": "TYPE_FP32", "dims": [2 * faults.SIZE]}],
    "parameters": {"generate.lengths": {"string_value": "lengths"}},
}
BF16 = {"precision": "bf16", "parameters": {"precision": {"string_value": "bf16"}}}


@pytest.mark.parametrize(
    ("model", "document"),
    [
        (faults.row_lengths(), FRAMES),
        pytest.param(faults.rotary(), BF16, marks=needs_bf16),
    ],
)
def test_a_fault_of_the_engine_shows(judge, model, document):
    """Of unequal rows, and far along an axis; what is mended holds."""
    assert judge(model, **document)[0].verdict == HOLDS
    verdict = judge(model, mended=False, **document)[0]
    assert verdict.verdict == FAILS
    assert "of its largest number" in verdict.figure


def test_a_fault_that_was_seen_before_time_ran_out_counts(judge, monkeypatch):
    """The engine would serve wrong answers that are known to be wrong."""
    answers = Compared.answers

    def some(self, other):
        yield from answers(self, other)
        raise OutOfTime

    monkeypatch.setattr(Compared, "answers", some)
    assert judge(faults.row_lengths(), mended=False, **FRAMES)[0].verdict == FAILS


def test_values_that_are_too_many_to_be_run_are_not_made(judge, monkeypatch):
    """By neither engine."""
    made, values = [], Trial.values
    monkeypatch.setattr(Trial, "values", lambda *a, **m: made.append(values(*a, **m)) or made[-1])
    dims = ["batch", "height", "width", 64]
    node = helper.make_node("Relu", ["x"], ["y"])
    model = graph([node], [("x", TensorProto.FLOAT, dims)], [("y", TensorProto.FLOAT, dims)])
    assert judge(model)[0].verdict == HOLDS
    assert max(value["x"].nbytes for value in made) <= 16 << 20


def test_ids_that_are_hashed_in_64_bits(judge):
    """OpenVINO computes them in 32, whatever the file says."""
    model = graph(
        [
            helper.make_node("Mul", ["x", "factor"], ["product"]),
            helper.make_node("Mod", ["product", "rows"], ["row"]),
            helper.make_node("Gather", ["table", "row"], ["y"]),
        ],
        [("x", TensorProto.INT64, ["batch", "length"])],
        [("y", TensorProto.FLOAT, ["batch", "length", WIDTH])],
        [("factor", np.array(1000003)), ("rows", np.array(97)), ("table", TABLE)],
    )
    assert judge(model)[0].verdict == FAILS


@needs_bf16
def test_a_fault_that_made_up_values_hide_shows_on_a_sample(judge):
    """BF16 knows no 1003: of what is left of it above a thousand a third is wrong."""
    model = graph(
        [
            helper.make_node("MatMul", ["x", "same"], ["y"]),
            helper.make_node("Sub", ["y", "thousand"], ["less"]),
            helper.make_node("Relu", ["less"], ["over"]),
        ],
        [("x", faults.FLOAT, ["n", 4])],
        [("over", faults.FLOAT, ["n", 4])],
        [("same", np.eye(4, dtype=np.float32)), ("thousand", np.float32(1000))],
    )
    assert judge(model, **BF16)[0].verdict == HOLDS
    verdict = judge(model, sample={"x": np.full((1, 4), 1003, np.float32)}, **BF16)[0]
    assert verdict.verdict == FAILS
    assert verdict.tested.endswith("also with 1 sample of the model")


def test_an_engine_that_is_right_holds(judge):
    """With how far it is from the other one, which was asked."""
    verdict, asked = judge(masked_mean())
    assert (verdict.verdict, asked) == (HOLDS, ["onnxruntime"])
    assert float(verdict.figure) < 1e-4


def test_a_second_start_asks_nobody(judge, tmp_path):
    """The verdict is kept with the file and the engines' releases."""
    verdict, asked = judge(masked_mean(), store=Store(tmp_path / "cache"))
    assert (verdict.verdict, asked) == (HOLDS, ["onnxruntime"])


def test_the_engine_that_the_file_is_made_for_is_not_compared(judge):
    """There is nothing else to go by."""
    assert judge(masked_mean(), engine="onnxruntime") == (None, [])


def test_without_another_engine_it_is_said(judge):
    """Nothing is known then, and it is served."""
    missing = DeviceUnavailable("model.onnx needs onnxruntime")
    verdict, _ = judge(masked_mean(), found=missing)
    assert verdict.verdict == NOT_TESTED
    assert "there is no onnxruntime to compare with" in verdict.tested


def test_it_may_be_taken_as_given(judge):
    """The parameter `assume` says so."""
    assume = {"parameters": {"assume": {"string_value": "engine"}}}
    verdict, asked = judge(masked_mean(), **assume)
    assert (verdict.verdict, asked) == (TAKEN, [])


def intermediate(folder, far, *, steps=0):
    """Return an IR, x -> what is above a number, and its weights; x is rounded to so many steps."""
    import openvino
    from openvino import opset13 as operators

    x = taken = operators.parameter([-1, 64], np.float32, name="x")
    if steps:
        low, high = np.float32([[-4]]), np.float32([[4]])
        taken = operators.fake_quantize(x, low, high, low, high, steps)
        weights = np.linspace(-0.5, 0.5, 64 * 64, dtype=np.float32).reshape(64, 64)
        low, high = np.float32([[-0.5]]), np.float32([[0.5]])
        weights = operators.fake_quantize(weights, low, high, low, high, steps - 1)
    else:
        weights = np.eye(64, dtype=np.float32)
    product = operators.matmul(taken, weights, False, False)
    over = operators.relu(operators.subtract(product, np.float32(far)))
    over.output(0).set_names({"over"})
    file = folder / "ir.xml"
    openvino.save_model(openvino.Model([over], [x], "m"), file, compress_to_fp16=False)
    return file.read_bytes(), file.with_suffix(".bin").read_bytes()


def test_an_ir_in_bf16_is_compared_with_itself_in_fp32(judge, tmp_path):
    """No other engine reads it; what the message asks for is another precision."""
    model, weights = intermediate(tmp_path, 0.0)
    verdict, asked = judge(model, weights=weights, **BF16)
    assert (verdict.verdict, asked) == (HOLDS, ["openvino"])
    assert "beside openvino in FP32 throughout" in verdict.tested


@needs_bf16
def test_an_ir_that_bf16_makes_wrong_fails_on_a_sample(judge, tmp_path):
    """It is compared with itself in FP32."""
    model, weights = intermediate(tmp_path, 1000.0)
    sample = {"x": np.full((1, 64), 1003, np.float32)}
    assert judge(model, weights=weights, sample=sample, **BF16)[0].verdict == FAILS


def test_an_ir_of_eight_bits_is_compared_with_the_same_rounding_in_fp32(judge, tmp_path):
    """Within what a step makes; it is none that is computed in INT8 as well.

    Where sums of bytes would saturate, nothing is.
    """
    model, weights = intermediate(tmp_path, 0.0, steps=256)
    verdict, asked = judge(model, weights=weights)
    assert (verdict.verdict, asked) == (HOLDS, ["openvino"])
    assert (float(verdict.figure) > 0) == has_int8()


def test_an_ir_in_fp32_is_not_compared(judge, tmp_path):
    """Its own answers are all there is; that is said."""
    model, weights = intermediate(tmp_path, 0.0)
    verdict, asked = judge(model, weights=weights)
    assert (verdict.verdict, asked) == (NOT_TESTED, [])
    assert "no other engine reads an .xml file" in verdict.tested
