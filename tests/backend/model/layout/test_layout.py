"""Which axes are padded, what the backend makes, and what an output is cut along."""

import math
from dataclasses import replace

import pytest

from builders.host_config import config_of, tensor
from ge_backend.errors import ConfigError
from ge_backend.model.layout.layout import build_layout
from ge_backend.tensors import ANY_SHAPE, DATA_TYPES, PREPARED, Signature, TensorSpec


def ragged(name, dims=(-1,), dtype="TYPE_FP32", **more):
    return tensor(name, dims, dtype, allow_ragged_batch=True, **more)


def spec(name, dims, axes=None, dtype="FP32", **more):
    axes = axes or tuple("" for _ in dims)
    return TensorSpec(name=name, dtype=DATA_TYPES[dtype], dims=dims, axes=axes, **more)


def graph(inputs, outputs=(), limits=None):
    return Signature(inputs=tuple(inputs), outputs=tuple(outputs), axis_limits=limits or {})


ENCODER = graph(
    [
        spec("input_ids", (-1, -1), ("batch", "length"), "INT64"),
        spec("attention_mask", (-1, -1), ("batch", "length"), "INT64"),
    ],
    [
        spec("tokens", (-1, -1, 384), ("batch", "length", "")),
        spec("embedding", (-1, 384), ("batch", "")),
    ],
    {"length": 512},
)
IDS = ragged("input_ids", dtype="TYPE_INT64")


def by_name(items):
    return {item.name: item for item in items}


def test_an_encoder_is_padded_along_its_length():
    """The ragged axis is padded in every tensor that has it, and the mask is made."""
    layout = build_layout(config_of(inputs=[IDS]), ENCODER)
    assert layout.batched
    assert layout.axes == ("length",)
    assert layout.equal_axes == ()
    assert layout.limits == {"length": 512}
    assert not layout.concatenated
    inputs, outputs = by_name(layout.inputs), by_name(layout.outputs)
    assert inputs["input_ids"].axes == (0,)
    assert inputs["input_ids"].made == ""
    assert inputs["attention_mask"].axes == (0,)
    assert inputs["attention_mask"].made == "mask"
    assert outputs["tokens"].axes == (0, -1)
    assert outputs["embedding"].axes == (-1,)
    assert outputs["tokens"].row_shape((7,)) == (7, 384)


def test_only_declared_outputs_are_wanted():
    """An output that the configuration leaves out is not given to clients."""
    config = config_of(inputs=[IDS], outputs=[tensor("embedding", [384])])
    layout = build_layout(config, ENCODER)
    assert [output.name for output in layout.outputs] == ["embedding"]


def test_a_mask_that_clients_must_send_is_not_made():
    """A declared input that is not optional is the client's business."""
    mask = ragged("attention_mask", dtype="TYPE_INT64")
    layout = build_layout(config_of(inputs=[IDS, mask]), ENCODER)
    assert by_name(layout.inputs)["attention_mask"].made == ""
    optional = {**mask, "optional": True}
    layout = build_layout(config_of(inputs=[IDS, optional]), ENCODER)
    assert by_name(layout.inputs)["attention_mask"].made == "mask"


def test_a_parameter_says_how_an_input_is_made():
    """`generate.<input>` goes before the well-known names."""
    config = config_of(inputs=[IDS], parameters={"generate.attention_mask": "zeros"})
    layout = build_layout(config, ENCODER)
    assert by_name(layout.inputs)["attention_mask"].made == "zeros"


SPEECH = graph(
    [
        spec("ids", (-1, -1), ("batch", "words"), "INT64"),
        spec("sound", (-1, -1, 80), ("batch", "frames", "")),
        spec("count", (-1,), ("batch",), "INT64"),
    ],
    [spec("y", (-1,), ("batch",))],
)
BOTH = [ragged("ids", dtype="TYPE_INT64"), ragged("sound", (-1, 80))]


@pytest.mark.parametrize(("axis", "index"), [("words", 0), ("frames", 1)])
def test_lengths_are_those_of_the_axis_that_is_named(axis, index):
    """Where several are padded."""
    parameters = {"generate.count": f"lengths:{axis}"}
    layout = build_layout(config_of(inputs=BOTH, parameters=parameters), SPEECH)
    assert layout.axes == ("words", "frames")
    assert by_name(layout.inputs)["count"].made == "lengths"
    assert by_name(layout.inputs)["count"].counted == index


def test_lengths_of_one_of_several_axes_are_not_guessed():
    """A wrong guess would give wrong results without a word."""
    for text, told in (
        ("lengths", r"of which of the axes words, frames\? .* such as 'lengths:words'"),
        ("lengths:letters", "names axis 'letters'; the axes are words, frames"),
    ):
        config = config_of(inputs=BOTH, parameters={"generate.count": text})
        with pytest.raises(ConfigError, match=rf"'generate\.count'.*{told}|{told}"):
            build_layout(config, SPEECH)
    only = [BOTH[0], tensor("sound", [-1, 80])]
    config = config_of(inputs=only, parameters={"generate.count": "lengths"})
    layout = build_layout(config, SPEECH)
    assert (layout.axes, by_name(layout.inputs)["count"].counted) == (("words",), 0)


def test_without_ragged_inputs_free_axes_must_match():
    """Nothing is padded then, and each input that clients send has free axes of its own."""
    signature = graph(
        [
            spec("a", (-1, -1), ("batch", "n")),
            spec("b", (-1, -1), ("batch", "n")),
            spec("attention_mask", (-1, -1), ("batch", "n")),
            spec("token_type_ids", (-1, -1), ("batch", "m")),
        ],
        [spec("y", (-1, -1), ("batch", "n"))],
    )
    config = config_of(inputs=[tensor("a"), tensor("b"), tensor("token_type_ids", optional=True)])
    layout = build_layout(config, signature)
    assert layout.axes == ()
    assert layout.equal_axes == ("n", "n", "m")
    axes = [item.axes for item in layout.inputs]
    assert axes == [(0,), (1,), (0,), (2,)]
    assert layout.outputs[0].axes == (0,)


@pytest.mark.parametrize(("parameters", "made"), [({}, ""), ({"generate.x": "zeros"}, "zeros")])
def test_zeros_are_not_made_for_a_graph_that_runs_without(parameters, made):
    """They would be staged for nothing; who asks for them has them, and what is sent is padded."""
    axes = ("batch", "length")
    types = spec("token_type_ids", (-1, -1), axes, "INT64", optional=True)
    said = {key.replace("x", types.name): text for key, text in parameters.items()}
    signature = replace(ENCODER, inputs=(*ENCODER.inputs, types))
    declared = ragged(types.name, dtype="TYPE_INT64", optional=True)
    config = config_of(inputs=[IDS, declared], parameters=said)
    found = by_name(build_layout(config, signature).inputs)
    assert (found[types.name].made, found[types.name].axes) == (made, (0,))
    undeclared = config_of(inputs=[IDS], parameters=said)
    found = by_name(build_layout(undeclared, signature).inputs)
    assert (types.name in found) == bool(made)


def test_static_shapes_pad_every_free_axis():
    """An engine with static shapes needs buckets for all that is free, ragged or not."""
    signature = graph([spec("x", (-1, -1, -1), ("batch", "h", "w"))], [spec("y", (-1, 8))])
    layout = build_layout(config_of(inputs=[tensor("x", [-1, -1])]), signature, PREPARED)
    assert layout.axes == ("h", "w")
    assert layout.inputs[0].axes == (0, 1)


def test_the_least_sizes_are_the_graphs():
    """Of padded axes in their order: what is shorter is padded to them."""
    least = replace(ENCODER, axis_least={"length": 4})
    layout = build_layout(config_of(inputs=[IDS]), least)
    assert (layout.least, layout.smallest) == ({"length": 4}, (4,))
    assert build_layout(config_of(inputs=[IDS]), ENCODER).smallest == (1,)


def test_the_most_rows_are_those_of_the_batch_dimension():
    """Where requests have a batch, and the file bounds it."""
    bounded = replace(ENCODER, axis_limits={"batch": 4, "sequence": 64})
    config = config_of(inputs=[IDS])
    assert build_layout(config, bounded).most_rows == 4
    assert build_layout(config, ENCODER).most_rows == 0


def test_the_least_rows_are_those_of_the_batch_dimension():
    """By the graph's own name of it, and only where it is one."""
    least = replace(ENCODER, axis_least={"batch": 4})
    renamed = config_of(inputs=[IDS], parameters={"axes.input_ids": "n,length"})
    for config in (config_of(inputs=[IDS]), renamed):
        assert build_layout(config, least).least_rows == 4
    assert build_layout(config_of(inputs=[IDS]), ENCODER).least_rows == 1


OPEN = graph(
    [spec("x", (-1, -1, -1), ("batch", "time", "features"))],
    [spec("y", (-1, -1, 4), ("batch", "time", ""))],
)


@pytest.mark.parametrize("shape_policy", [ANY_SHAPE, PREPARED])
def test_a_size_that_the_configuration_alone_fixes_is_the_only_one(shape_policy):
    """A graph that leaves its features open computes others from padded ones."""
    config = config_of(inputs=[ragged("x", (-1, 80))])
    layout = build_layout(config, OPEN, shape_policy)
    assert (layout.axes, layout.sizes) == (("time", "features"), {"features": 80})
    layout = build_layout(config_of(inputs=[tensor("x", (9, 80))]), OPEN)
    assert (layout.equal_axes, layout.sizes) == (("time", "features"), {"time": 9, "features": 80})
    assert build_layout(config_of(inputs=[IDS]), ENCODER, shape_policy).sizes == {}


@pytest.mark.parametrize(
    ("first", "second", "sizes"),
    [
        (tensor("x", (8,)), tensor("z", (8,)), {"n": 8}),
        (tensor("x", (8,)), tensor("z"), {"n": 8}),
        (tensor("x", (8,)), tensor("z", (9,)), {}),
        (tensor("x", (8,), optional=True), tensor("z"), {}),
        (tensor("x", (8,)), tensor("z", (9,), optional=True), {"n": 8}),
        (tensor("x", (8,), optional=True), tensor("z", (8,), optional=True), {"n": 8}),
    ],
)
def test_a_size_counts_where_no_other_input_can_bring_another(first, second, sizes):
    """A padded axis has one size in all inputs of a request, so what each must have decides."""
    signature = graph([spec(name, (-1, -1), ("batch", "n"), optional=True) for name in "xz"])
    layout = build_layout(config_of(inputs=[first, second]), signature, PREPARED)
    assert (layout.axes, layout.sizes) == (("n",), sizes)


def test_padded_axes_come_before_equal_ones():
    """An axis that only an unpadded input has is an equal one beside a padded one."""
    signature = graph(
        [
            spec("fixed", (-1, -1), ("batch", "k")),
            spec("x", (-1, -1, 3), ("batch", "length", "")),
        ],
        [spec("y", (-1, -1, -1), ("batch", "k", "length"))],
    )
    config = config_of(inputs=[tensor("fixed"), ragged("x", [-1, 3])])
    layout = build_layout(config, signature)
    assert layout.axes == ("length",)
    assert layout.equal_axes == ("k",)
    assert [item.axes for item in layout.inputs] == [(1,), (0, -1)]
    assert layout.outputs[0].axes == (1, 0)
    assert layout.outputs[0].row_shape((5, 2)) == (2, 5)


def test_an_axis_name_of_a_padded_axis_is_padded_in_other_inputs_too():
    """One name is one size, so a mask that is not marked ragged is padded like the ids."""
    mask = tensor("attention_mask", dtype="TYPE_INT64")
    layout = build_layout(config_of(inputs=[IDS, mask]), ENCODER)
    assert by_name(layout.inputs)["attention_mask"].axes == (0,)
    assert layout.equal_axes == ()


def test_unnamed_free_dimensions_are_axes_of_their_own():
    """Two dimensions without names are never taken for the same."""
    signature = graph([spec("x", (-1, -1, -1))], [spec("y", (-1, 8))])
    config = config_of(inputs=[ragged("x", [-1, -1])])
    layout = build_layout(config, signature)
    assert layout.axes == ("x.1", "x.2")


UNKNOWN = graph(
    [spec("x", (-1, -1), ("batch", "length"))], [spec("y", (-1, -1), ("batch", "frames"))]
)


def test_an_output_of_unknown_length_switches_padding_off(caplog):
    """Its padding could not be cut off, so requests of different lengths run apart."""
    layout = build_layout(config_of(inputs=[ragged("x")]), UNKNOWN)
    assert layout.axes == ()
    assert layout.equal_axes == ("length",)
    assert layout.outputs[0].axes == (-1,)
    assert layout.outputs[0].row_shape((5,)) == (-1,)
    assert "axes.y" in caplog.text


def test_an_output_of_unknown_length_is_an_error_where_shapes_are_static():
    """There the engine could not run without padding; the message names the parameter."""
    with pytest.raises(ConfigError, match=r"'y'.*'axes\.y'"):
        build_layout(config_of(inputs=[ragged("x")]), UNKNOWN, PREPARED)


WITH_LENGTHS = graph(
    [spec("x", (-1, -1), ("batch", "length"))],
    [
        spec("y", (-1, -1, 8), ("batch", "frames", ""), fill=3.0),
        spec("n", (-1,), ("batch",), "INT64"),
    ],
)


@pytest.mark.parametrize("shape_policy", [ANY_SHAPE, PREPARED])
def test_an_output_that_tells_sizes_makes_another_one_cuttable(shape_policy):
    """`lengths.<axis>` settles what would switch padding off; nothing is predicted of that axis."""
    config = config_of(inputs=[ragged("x")], parameters={"lengths.frames": "n"})
    layout = build_layout(config, WITH_LENGTHS, shape_policy)
    assert layout.axes == ("length",)
    outputs = by_name(layout.outputs)
    assert outputs["y"].lengths == ("n", "")
    assert outputs["y"].row_shape((7,)) == (-1, 8)
    assert outputs["y"].fill == 3.0
    assert outputs["n"].lengths == ()


def test_a_graph_may_tell_sizes_itself():
    """What its signature says needs no parameter, and goes before an input's axis of that name."""
    told = replace(ENCODER, lengths={"length": "attention"})
    layout = build_layout(config_of(inputs=[IDS]), told)
    assert by_name(layout.outputs)["tokens"].lengths == ("attention", "")
    assert by_name(layout.outputs)["tokens"].axes == (-1, -1)
    assert by_name(layout.outputs)["embedding"].lengths == ()


def test_a_parameter_fills_an_output():
    """`pad.<output>` goes before what the graph says."""
    parameters = {"lengths.frames": "n", "pad.y": "-1"}
    layout = build_layout(config_of(inputs=[ragged("x")], parameters=parameters), WITH_LENGTHS)
    assert by_name(layout.outputs)["y"].fill == -1.0


def test_naming_an_outputs_axes_settles_what_it_follows():
    """`axes.<output>` ties its dimension to an input's, or says that it follows none."""
    follows = config_of(inputs=[ragged("x")], parameters={"axes.y": "batch,length"})
    layout = build_layout(follows, UNKNOWN, PREPARED)
    assert layout.outputs[0].axes == (0,)
    free = config_of(inputs=[ragged("x")], parameters={"axes.y": "batch,frames"})
    layout = build_layout(free, UNKNOWN, PREPARED)
    assert layout.axes == ("length",)
    assert layout.outputs[0].axes == (-1,)


def test_an_outputs_dims_in_the_configuration_settle_what_the_file_leaves_open():
    """A fixed size follows no input, so rows are padded; one that an input has follows that."""
    declared = [tensor("y", [3])]
    layout = build_layout(config_of(inputs=[ragged("x")], outputs=declared), UNKNOWN, PREPARED)
    assert layout.axes == ("length",)
    assert (layout.outputs[0].dims, layout.outputs[0].axes) == ((3,), (-1,))
    follows = config_of(
        inputs=[ragged("x")], outputs=declared, parameters={"axes.y": "batch,length"}
    )
    layout = build_layout(follows, UNKNOWN, PREPARED)
    assert (layout.outputs[0].dims, layout.outputs[0].axes) == ((-1,), (0,))


STEPPED = graph(
    [
        spec("x", (-1, -1), ("batch", "length")),
        spec("past", (-1, -1), ("batch", "kept")),
        spec("last", (-1, 2), ("batch", "")),
    ],
    [
        spec("y", (-1, 1), ("batch", "")),
        spec("present", (-1, -1), ("batch", "all")),
        spec("next", (-1, 2), ("batch", "")),
    ],
)
PAST = {"input_name": "past", "output_name": "present", "data_type": "TYPE_FP32", "dims": [-1]}
LAST = {"input_name": "last", "output_name": "next", "data_type": "TYPE_FP32", "dims": [2]}


def stepped(states, x):
    """Return the settings of a model with these states; the graph's others are outputs."""
    return config_of(
        inputs=[x, *(tensor(s["input_name"], s["dims"]) for s in (PAST, LAST) if s not in states)],
        outputs=[tensor("y", [1])],
        sequence_batching={"direct": {}, "state": list(states)},
    )


def test_a_state_that_grows_switches_padding_off(caplog):
    """What it grew by in a batch with longer requests would be padding, which nobody cuts off."""
    layout = build_layout(stepped([LAST, PAST], ragged("x")), STEPPED)
    assert (layout.axes, layout.equal_axes) == ((), ("length",))
    assert "state 'past' has dims with -1" in caplog.text


def test_a_state_that_grows_is_an_error_where_shapes_are_static():
    """There the engine could not run without padding."""
    with pytest.raises(ConfigError, match=r"state 'past' has dims with -1"):
        build_layout(stepped([PAST], tensor("x")), STEPPED, PREPARED)


def test_only_a_state_that_grows_switches_padding_off(caplog):
    """One of a fixed size does not; and where nothing is padded there is nothing to say."""
    signature = graph(
        [s for s in STEPPED.inputs if s.name != "past"],
        [s for s in STEPPED.outputs if s.name != "present"],
    )
    config = config_of(inputs=[ragged("x")], sequence_batching={"direct": {}, "state": [LAST]})
    assert build_layout(config, signature).axes == ("length",)
    build_layout(stepped([LAST, PAST], tensor("x")), STEPPED)
    assert caplog.text == ""


def test_an_output_that_is_not_wanted_does_not_switch_padding_off():
    """Only outputs that clients get need their padding cut off."""
    signature = graph(UNKNOWN.inputs, [*UNKNOWN.outputs, spec("z", (-1, 8))])
    config = config_of(inputs=[ragged("x")], outputs=[tensor("z", [8])])
    assert build_layout(config, signature).axes == ("length",)


def test_a_model_without_a_batch_dimension_keeps_all_its_dimensions():
    """`max_batch_size: 0`: the first dimension is a dimension like any other."""
    signature = graph([spec("x", (-1, 3), ("n", ""))], [spec("y", (-1,), ("n",))])
    config = config_of(inputs=[tensor("x", [-1, 3])], max_batch_size=0)
    layout = build_layout(config, signature)
    assert not layout.batched
    assert layout.equal_axes == ("n",)
    assert layout.inputs[0].dims == (-1, 3)
    assert layout.outputs[0].axes == (0,)


def test_an_optional_input_that_nobody_declares_is_left_to_the_graph():
    """It is not in the layout; one that is declared may be left out by clients."""
    signature = graph([spec("x", (-1, 3)), spec("extra", (-1, 3), optional=True)])
    layout = build_layout(config_of(inputs=[tensor("x", [3])]), signature)
    assert [item.name for item in layout.inputs] == ["x"]
    declared = config_of(inputs=[tensor("x", [3]), tensor("extra", [3], optional=True)])
    layout = build_layout(declared, signature)
    assert by_name(layout.inputs)["extra"].optional


@pytest.mark.parametrize(
    ("dtype", "text", "stored"),
    [
        ("FP32", "-1.5", -1.5),
        ("FP32", "-inf", -math.inf),
        ("FP16", "65504", 65504.0),
        ("INT8", "-128", -128.0),
        ("UINT64", "1", 1.0),
        ("BOOL", "1", 1.0),
        ("BF16", "1", float(0x3F80)),
        ("INT64", None, 0.0),
        ("BYTES", None, 0.0),
    ],
)
def test_padding_is_held_as_the_type_stores_it(dtype, text, stored):
    """A value that the type can hold is kept; BF16 is held as its bit pattern."""
    signature = graph([spec("x", (-1, -1), dtype=dtype)], [spec("y", (-1, 8))])
    given = tensor("x", dtype=DATA_TYPES[dtype].config_name)
    config = config_of(inputs=[given], parameters={"pad.x": text} if text else {})
    assert build_layout(config, signature).inputs[0].fill == stored


def test_padding_may_be_nan_where_the_type_has_it():
    """NaN is a value of a float input like any other."""
    signature = graph([spec("x", (-1, -1))])
    config = config_of(inputs=[tensor("x")], parameters={"pad.x": "nan"})
    assert math.isnan(build_layout(config, signature).inputs[0].fill)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("INT64", "nan"),
        ("INT64", "inf"),
        ("INT64", "0.5"),
        ("INT8", "128"),
        ("UINT8", "-1"),
        ("BOOL", "2"),
        ("FP16", "1e9"),
        ("BYTES", "0"),
    ],
)
def test_padding_that_the_type_cannot_hold_is_refused_at_load(dtype, text):
    """Found at load, not when the first unequal batch comes."""
    signature = graph([spec("x", (-1, -1), dtype=dtype)])
    given = tensor("x", dtype=DATA_TYPES[dtype].config_name)
    config = config_of(inputs=[given], parameters={"pad.x": text})
    with pytest.raises(ConfigError, match=f"'pad.x'.*{dtype} cannot hold"):
        build_layout(config, signature)


COUNTS = {
    "kind": "BATCH_ELEMENT_COUNT",
    "target_name": ["n"],
    "data_type": "TYPE_FP32",
    "source_input": ["x"],
}
SCATTER = {
    "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
    "target_name": ["y"],
    "source_input": ["x"],
}


def test_concatenated_inputs_are_written_for_the_whole_batch():
    """Names of graph dimensions say nothing here: exporters reuse one for all of them."""
    signature = graph(
        [
            spec("x", (-1,), ("var_0",)),
            spec("n", (-1,), ("var_0",)),
            spec("beside", (-1, -1), ("", "var_0")),
        ],
        [spec("y", (-1,), ("var_0",)), spec("z", (-1, -1), ("", "var_1"))],
    )
    config = config_of(
        inputs=[ragged("x", [-1, 2]), tensor("beside")],
        outputs=[tensor("y", [-1, 2]), tensor("z")],
        batch_input=[COUNTS],
        batch_output=[SCATTER],
    )
    layout = build_layout(config, signature)
    assert layout.concatenated
    assert layout.axes == ()
    assert layout.equal_axes == ("var_0",)
    inputs, outputs = by_name(layout.inputs), by_name(layout.outputs)
    assert (inputs["x"].source, inputs["x"].made) == ("x", "")
    assert (inputs["x"].dims, inputs["x"].axes) == ((-1, 2), (-1, -1))
    assert (inputs["n"].source, inputs["n"].made) == ("x", "BATCH_ELEMENT_COUNT")
    assert (inputs["beside"].source, inputs["beside"].axes) == ("", (0,))
    assert (outputs["y"].source, outputs["y"].dims) == ("x", (-1, 2))
    assert (outputs["z"].source, outputs["z"].axes) == ("", (-1,))


def test_a_scattered_output_alone_makes_a_model_concatenate():
    """`batch_output` without `batch_input` describes a flat identity."""
    signature = graph([spec("x", (-1,))], [spec("y", (-1,))])
    config = config_of(inputs=[ragged("x")], outputs=[tensor("y")], batch_output=[SCATTER])
    assert build_layout(config, signature).concatenated


def test_concatenation_is_refused_where_shapes_are_static():
    """A flat input has another size in every batch; the message says what to set."""
    signature = graph([spec("x", (-1,)), spec("n", (-1,))])
    config = config_of(inputs=[ragged("x")], batch_input=[COUNTS])
    with pytest.raises(ConfigError, match="static shapes; set the parameter 'ragged' to pad"):
        build_layout(config, signature, PREPARED)


SCALED = graph(
    [
        spec("x", (-1, -1), ("batch", "length")),
        spec("rate", (), dtype="INT64"),
        spec("three", (3,)),
    ],
    [spec("y", (-1, -1), ("batch", "length")), spec("loss", ())],
)
RATE, THREE = tensor("rate", [1], "TYPE_INT64"), tensor("three", [3])


def scaled(*inputs, outputs=(), rows=4, **made):
    config = config_of(
        inputs=[tensor("x", [-1] if rows else [-1, -1]), *inputs],
        outputs=list(outputs) or [tensor("y", [-1] if rows else [-1, -1])],
        max_batch_size=rows,
        parameters={f"generate.{name}": number for name, number in made.items()},
    )
    return build_layout(config, SCALED)


def test_an_input_without_rows_is_one_for_all_of_a_run():
    """Clients send it row by row; one value or several, and nothing of it is padded."""
    inputs = by_name(scaled(RATE, THREE).inputs)
    assert [inputs[name].common for name in ("x", "rate", "three")] == [None, (), (3,)]
    assert [inputs[name].dims for name in ("rate", "three")] == [(1,), (3,)]
    assert inputs["x"].shape((2,), (5,)) == (2, 5)
    assert [inputs[name].shape((2,), (5,)) for name in ("rate", "three")] == [(), (3,)]


def test_a_scalar_is_one_value_for_the_host_where_there_are_no_rows():
    """An input as an output: the host knows no tensors without dimensions."""
    layout = scaled(RATE, THREE, outputs=[tensor("loss", [1])], rows=0)
    inputs = by_name(layout.inputs)
    assert (inputs["rate"].dims, inputs["rate"].common) == ((1,), ())
    assert (inputs["three"].dims, inputs["three"].common) == ((3,), None)
    assert layout.outputs[0].dims == ()


def test_an_input_may_be_a_number():
    """Of its own type, for all of it; one that it cannot hold is refused."""
    inputs = by_name(scaled(THREE, rate="16000").inputs)
    assert (inputs["rate"].made, inputs["rate"].number, inputs["rate"].common) == (
        "number",
        16000.0,
        (),
    )
    assert by_name(scaled(rate="1", three="0.5").inputs)["three"].number == 0.5
    with pytest.raises(ConfigError, match=r"'generate.rate' is 0.5, which INT64 cannot hold"):
        scaled(THREE, rate="0.5")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "rate", "dims": [2]}, r"it is a scalar.*declare one value as dims: \[ 1 \], or"),
        ({"name": "three", "dims": [1]}, r"declared whole, dims: \[3\]"),
    ],
)
def test_an_input_without_rows_that_is_declared_otherwise_is_refused(given, message):
    """It says how it would be taken."""
    rest = [one for one in (RATE, THREE) if one["name"] != given["name"]]
    old = next(one for one in (RATE, THREE) if one["name"] == given["name"])
    with pytest.raises(ConfigError, match=message):
        scaled(*rest, {**old, **given})
