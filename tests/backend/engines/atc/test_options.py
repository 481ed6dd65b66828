"""The command line of `atc`: gears from buckets, options, and what is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.engines.atc.options import (
    CompileRequest,
    arguments,
    gears_of,
    precision_note,
)
from ge_backend.errors import ConfigError, ModelError
from ge_backend.tensors import TensorSpec, data_type


def spec(name, *dims):
    return TensorSpec(name=name, dtype=data_type("INT64"), dims=dims, axes=tuple("" for _ in dims))


TEXT = (spec("ids", -1, -1), spec("mask", -1, -1))


def request(*shapes, inputs=TEXT, **changes):
    """Return a request; a shape that is a tuple is that of every input."""
    buckets = tuple(
        shape if isinstance(shape, dict) else {i.name: shape for i in inputs} for shape in shapes
    )
    given = {"model": Path("m.onnx"), "inputs": inputs, "shapes": buckets, "soc": "Ascend910B3"}
    return CompileRequest(**(given | changes))


def line(*shapes, **changes):
    """Return the arguments by name."""
    pairs = (argument.split("=", 1) for argument in arguments(request(*shapes, **changes)))
    return {name.removeprefix("--"): value for name, value in pairs}


def test_one_bucket_is_a_fixed_shape():
    """No gears: atc takes no fewer than two."""
    assert arguments(request((1, 16))) == (
        "--framework=5",
        "--soc_version=Ascend910B3",
        "--input_format=ND",
        "--input_shape=ids:1,16;mask:1,16",
        "--precision_mode_v2=origin",
    )


def test_where_only_the_batch_differs_there_are_batch_sizes():
    """All first dimensions move together."""
    given = line((4, 16), (1, 16), (2, 16))
    assert given["input_shape"] == "ids:-1,16;mask:-1,16"
    assert given["dynamic_batch_size"] == "1,2,4"
    assert "dynamic_dims" not in given


def test_an_input_without_the_batch_keeps_its_shape():
    """A table that every row shares must be listed."""
    inputs = (spec("x", -1, 3), spec("table", 5, 7))
    buckets = [{"x": (rows, 3), "table": (5, 7)} for rows in (1, 8)]
    given = line(*buckets, inputs=inputs)
    assert given["input_shape"] == "x:-1,3;table:5,7"
    assert given["dynamic_batch_size"] == "1,8"


def test_a_scalar_input_forbids_batch_sizes():
    """Atc refuses an empty shape there (E10012); lists of dimensions do the same."""
    inputs = (spec("x", -1, 3), spec("scale"))
    given = line(*({"x": (rows, 3), "scale": ()} for rows in (1, 8)), inputs=inputs)
    assert given["input_shape"] == "x:-1,3;scale:"
    assert given["dynamic_dims"] == "1;8"
    assert "dynamic_batch_size" not in given


@pytest.mark.parametrize(
    "soc", ["Ascend310P3", "Ascend310P1", "Ascend910A", "Ascend910B", "Ascend910ProB", "Ascend910"]
)
def test_chips_without_fp32_in_their_matrix_unit_compute_in_fp16(soc):
    """Else these operators run on the AI CPU, or do not compile; an option can ask for it."""
    assert line((1, 8), soc=soc)["precision_mode_v2"] == "fp16"
    assert "no FP32 matrix unit" in precision_note(request((1, 8), soc=soc))
    asked = (("atc.precision_mode_v2", "origin"),)
    assert line((1, 8), soc=soc, options=asked)["precision_mode_v2"] == "origin"
    assert "AI CPU" in precision_note(request((1, 8), soc=soc, options=asked))
    fp16 = request((1, 8), soc=soc, precision="fp16")
    assert "--precision_mode_v2=mixed_float16" in arguments(fp16)
    assert precision_note(fp16) == ""
    with pytest.raises(
        ConfigError, match=f"precision is 'bf16', which {soc} does not have; .*fp16"
    ):
        line((1, 8), soc=soc, precision="bf16")


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend910B4-1", "Ascend910_9382", "Ascend310B1"])
def test_other_chips_keep_the_files_precision(soc):
    """There is nothing to say about it."""
    assert line((1, 8), soc=soc)["precision_mode_v2"] == "origin"
    assert precision_note(request((1, 8), soc=soc)) == ""


def test_otherwise_each_gear_lists_what_differs():
    """Values fill the -1 of all inputs in the graph's order; what is equal in all is fixed."""
    given = line((1, 16), (1, 64))
    assert given["input_shape"] == "ids:1,-1;mask:1,-1"
    assert given["dynamic_dims"] == "16,16;64,64"
    inputs = (spec("b", -1, 4, -1), spec("a", -1))
    buckets = [{"b": (r, 4, s), "a": (s,)} for r in (1, 2) for s in (8, 16)]
    given = line(*buckets, inputs=inputs)
    assert given["input_shape"] == "b:-1,4,-1;a:-1"
    assert given["dynamic_dims"] == "1,8,8;1,16,16;2,8,8;2,16,16"


def test_first_dimensions_that_do_not_move_together_are_no_batch():
    """Two batches of their own."""
    buckets = [{"ids": (1, 8), "mask": (2, 8)}, {"ids": (2, 8), "mask": (4, 8)}]
    assert line(*buckets)["dynamic_dims"] == "1,2;2,4"


@pytest.mark.parametrize("rows", [(1, 2049)], ids=["large"])
def test_batch_sizes_have_limits_of_their_own(rows):
    """Each up to 2048; beyond, dimensions can say the same."""
    given = line(*((row, 16) for row in rows), soc="Ascend950PR_9579")
    assert "dynamic_batch_size" not in given
    assert len(given["dynamic_dims"].split(";")) == len(rows)


@pytest.mark.parametrize(("soc", "limit"), [("Ascend910B3", 100), ("Ascend950PR_9579", 128)])
def test_more_gears_than_there_can_be_are_refused(soc, limit):
    """The message says what to set. On an Ascend 950 atc takes 256, of which ACL lists 128."""
    shapes = [(row, 8) for row in range(1, limit + 2)]
    assert line(*shapes[:-1], soc=soc)
    with pytest.raises(
        ConfigError, match=rf"{limit + 1} buckets.*at most {limit}.*'max_graphs' to {limit} or"
    ):
        line(*shapes, soc=soc)


def test_more_dimensions_than_a_gear_can_state_are_refused():
    """Only where gears are chosen by dimensions."""
    inputs = tuple(spec(f"x{at}", -1, -1, 2) for at in range(43))
    with pytest.raises(ConfigError, match=r"129 dimensions.*at most 128"):
        line((1, 8, 2), (1, 16, 2), inputs=inputs)
    assert line((1, 8, 2), (2, 8, 2), inputs=inputs)["dynamic_batch_size"] == "1,2"


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ([], "it has no bucket"),
        ([{"ids": (1, 8)}], "'mask' is INT64.* a bucket has None"),
        ([(1, 8, 1)], "a bucket has \\(1, 8, 1\\)"),
        ([(1, 0)], "a bucket has \\(1, 0\\)"),
    ],
)
def test_buckets_that_do_not_fit_the_inputs(shapes, said):
    """Every input needs a whole shape in every bucket."""
    with pytest.raises(ModelError, match=said):
        line(*shapes)


def test_fixed_dimensions_stay():
    """The model's own sizes are not the bucket's to choose."""
    with pytest.raises(ModelError, match=r"\[\?, 16\]; a bucket has \(1, 8\)"):
        line((1, 8), inputs=(spec("x", -1, 16),))


def test_a_name_that_atc_would_split():
    """A semicolon separates inputs; a colon in a name is harmless, the last one counts."""
    with pytest.raises(ModelError, match="no ';' in an input's name"):
        line((1, 8), inputs=(spec("a;b", -1, -1),))
    assert line((1, 8), inputs=(spec("in:0", -1, -1),))["input_shape"] == "in:0:1,8"


def test_a_model_without_inputs():
    """There is one way to run it."""
    assert line({}, inputs=())["input_shape"] == ""


@pytest.mark.parametrize(
    ("precision", "mode"),
    [("origin", "origin"), ("fp16", "mixed_float16"), ("bf16", "mixed_bfloat16")],
)
def test_precision(precision, mode):
    """Always stated: atc by itself would force everything into fp16."""
    assert line((1, 8), precision=precision)["precision_mode_v2"] == mode


def test_an_option_may_state_the_precision():
    """As the C++ GE backend calls it, or as atc does, in its old and its new way."""
    for key in ("session.ge.exec.precision_mode_v2", "atc.precision_mode_v2"):
        assert line((1, 8), options=((key, "fp16"),))["precision_mode_v2"] == "fp16"
    old = line((1, 8), options=(("ge.exec.precision_mode", "force_fp16"),))
    assert old["precision_mode"] == "force_fp16"
    assert "precision_mode_v2" not in old


def test_options_are_passed_through():
    """Keys of the C++ GE backend at any level, and everything else by atc's own name."""
    options = (
        ("ge.aicoreNum", "12|10"),
        ("global.ge.opSelectImplmode", "high_precision"),
        ("graph.ge.enableSingleStream", "true"),
        ("atc.op_debug_level", "0"),
    )
    given = line((1, 8), options=options)
    assert given["aicore_num"] == "12|10"
    assert given["op_select_implmode"] == "high_precision"
    assert given["enable_single_stream"] == "true"
    assert given["op_debug_level"] == "0"


def test_options_for_other_engines_are_not_for_atc():
    """The model's configuration may have some; they make no other result."""
    options = (("ge.aicoreNum", "12|10"), ("npu.timeout_s", "5"), ("tokenizer.max_length", "9"))
    asked = request((1, 8), options=options)
    assert arguments(asked) == arguments(request((1, 8), options=options[:1]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([("atc.model", "other.onnx")], "'atc.model' cannot be given to atc: .* own file"),
        ([("atc.soc_version", "Ascend310")], "it is the device's"),
        ([("atc.dynamic_dims", "1;2")], "the model's buckets say it"),
        ([("graph.ge.dynamicDims", "1;2")], "'graph.ge.dynamicDims' cannot .* buckets say it"),
        ([("atc.external_weight", "1")], "one file per model"),
        ([("atc.mode", "3")], "it would not compile"),
        ([("ge.unheardOf", "1")], "'ge.unheardOf' means nothing to atc.*ge.aicoreNum"),
        ([("session.aicoreNum", "1")], "'session.aicoreNum' means nothing to atc"),
        ([("atc.--Model x", "1")], "means nothing to atc"),
        ([("ge.aicoreNum", "1|1"), ("atc.aicore_num", "2|2")], "'1\\|1' elsewhere"),
        ([("ge.aicoreNum", "0|1")], "'0\\|1'; expected cube and vector cores"),
        ([("ge.aicoreNum", "all")], "expected cube and vector cores"),
    ],
)
def test_options_that_cannot_be_passed(options, said):
    """What is said elsewhere, what nobody knows, and what contradicts itself."""
    with pytest.raises(ConfigError, match=said):
        line((1, 8), options=tuple(options))


def test_a_precision_is_stated_once():
    """The parameter `precision`, or one option."""
    with pytest.raises(ConfigError, match=r"stated twice: precision 'bf16', precision_mode_v2 'fp"):
        line((1, 8), precision="bf16", options=(("ge.exec.precision_mode_v2", "fp16"),))
    both = (("ge.exec.precision_mode_v2", "fp16"), ("atc.precision_mode", "force_fp16"))
    with pytest.raises(ConfigError, match="stated twice"):
        line((1, 8), options=both)
    with pytest.raises(ConfigError, match="precision is 'fp8'; expected one of origin"):
        line((1, 8), precision="fp8")


@pytest.mark.parametrize("option", [("atc.input_format", "NCHW"), ("ge.insertOpFile", "aipp.cfg")])
def test_what_dimension_gears_exclude(option):
    """Image formats and AIPP go with batch sizes only."""
    assert line((1, 8), (2, 8), options=(option,))
    with pytest.raises(ConfigError, match="where more than the batch varies"):
        line((1, 8), (1, 16), options=(option,))


@given(
    st.sets(st.tuples(st.integers(1, 40), st.integers(1, 500)), min_size=1, max_size=100),
    st.randoms(use_true_random=False),
)
def test_gears_are_the_buckets(buckets, random):
    """Filling the -1 with each gear gives back the buckets, whatever order they came in."""
    shuffled = sorted(buckets)
    random.shuffle(shuffled)
    asked = request(*shuffled)
    gears = gears_of(asked)
    filled = set()
    for values in gears.values:
        rest = list(values)
        if gears.kind == "dynamic_batch_size":
            rest *= 2
        for name, dims in gears.shapes:
            shape = tuple(rest.pop(0) if dim == -1 else dim for dim in dims)
            filled.add((name, shape))
        assert not rest
    assert filled == {(name, bucket) for name in ("ids", "mask") for bucket in buckets}
    assert arguments(asked) == arguments(request(*sorted(buckets)))
