"""Every contradiction between a configuration and a graph is found at load and named."""

from dataclasses import replace

import pytest

from builders.host_config import config_of, tensor
from ge_backend.errors import ConfigError
from ge_backend.model.layout.validate import agreed_signature
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec


def spec(name, dims, dtype="FP32", axes=None, **more):
    axes = axes or tuple("" for _ in dims)
    return TensorSpec(name=name, dtype=DATA_TYPES[dtype], dims=dims, axes=axes, **more)


def graph(inputs, outputs=()):
    return Signature(inputs=tuple(inputs), outputs=tuple(outputs), axis_limits={})


X = tensor("x")
RAGGED = tensor("x", allow_ragged_batch=True)
GRAPH = graph([spec("x", (-1, -1))], [spec("y", (-1, -1))])
FLAT = graph([spec("x", (-1,)), spec("n", (-1,))], [spec("y", (-1,))])
TELLING = graph(
    [spec("x", (-1, -1))],
    [
        spec("y", (-1, -1), axes=("", "frames")),
        spec("n", (-1,), "INT32"),
        spec("column", (-1, 1), "INT64"),
        spec("mask", (-1, -1), "BOOL", ("", "frames")),
        spec("wide", (-1, -1, 2), "INT64", ("", "frames", "")),
    ],
)
MASKED = graph(
    [
        spec("x", (-1, -1), axes=("batch", "sequence")),
        spec("attention_mask", (-1, -1), axes=("batch", "sequence")),
    ]
)
TRANSPOSED = graph(
    [spec("x", (-1, -1), axes=("batch", "length"))],
    [spec("y", (-1, -1), axes=("length", "batch"))],
)
SIMILARITY = graph(
    [spec("x", (-1, -1), axes=("batch", "width"))],
    [spec("y", (-1, -1), axes=("batch", "batch"))],
)
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


def test_agreement_leaves_the_graphs_own_signature_alone():
    """Where nothing is contradicted or named, the signature is the graph's."""
    assert agreed_signature(config_of(inputs=[X], outputs=[tensor("y")]), GRAPH) == GRAPH


def test_dimensions_are_named_by_parameters():
    """`axes.<tensor>` names the dimensions, batch included."""
    named = agreed_signature(config_of(inputs=[X], parameters={"axes.y": "batch,length"}), GRAPH)
    assert named.outputs[0].axes == ("batch", "length")
    assert named.inputs == GRAPH.inputs


@pytest.mark.parametrize("name", ["n", "column", "mask"])
def test_an_output_may_tell_the_sizes_of_others(name):
    """As a number per row, in a column too, or as a mask."""
    config = config_of(inputs=[X], parameters={"lengths.frames": name})
    assert agreed_signature(config, TELLING).lengths == {"frames": name}


def test_without_batches_an_output_may_tell_the_size_of_the_only_axis():
    """There is no batch dimension in front of it."""
    told = [spec("y", (-1,), axes=("frames",)), spec("n", (1,), "INT32")]
    config = config_of(inputs=[X], max_batch_size=0, parameters={"lengths.frames": "n"})
    agreed = agreed_signature(config, graph([spec("x", (-1,))], told))
    assert agreed.lengths == {"frames": "n"}


def test_a_file_without_a_signature_gets_the_declared_one():
    """TorchScript says nothing about its tensors, so the configuration does."""
    config = config_of(inputs=[X], outputs=[tensor("y", [8])])
    signature = agreed_signature(config, graph([]))
    assert signature.inputs == (spec("x", (-1, -1)),)
    assert signature.outputs == (spec("y", (-1, 8)),)


def test_a_file_without_a_signature_takes_concatenated_inputs_flat():
    """Then ragged inputs are one-dimensional, and batch inputs are inputs too."""
    shapes = {**COUNTS, "kind": "BATCH_ITEM_SHAPE", "target_name": ["s"], "data_type": "TYPE_INT32"}
    config = config_of(inputs=[RAGGED], outputs=[tensor("y")], batch_input=[COUNTS, shapes])
    assert agreed_signature(config, graph([])).inputs == (
        spec("x", (-1,)),
        spec("n", (-1,)),
        spec("s", (-1, -1), "INT32"),
    )


def test_an_axis_of_its_own_is_no_matter_where_clients_may_send_the_input():
    """Or where it is one of another input: then its size is known."""
    renamed = {"axes.x": "batch,length"}
    mask = tensor("attention_mask", optional=True)
    assert agreed_signature(config_of(inputs=[X, mask], parameters=renamed), MASKED)
    both = {**renamed, "axes.attention_mask": "batch,length"}
    assert agreed_signature(config_of(inputs=[X], parameters=both), MASKED)
    assert agreed_signature(config_of(inputs=[X]), MASKED) == MASKED


@pytest.mark.parametrize(
    ("axes", "parameters"),
    [
        ([("n", "n"), ("n", "n")], {}),
        ([("unk__0", "unk__1"), ("unk__2", "unk__1")], {}),
        ([("", ""), ("", "")], {}),
        ([("batch", "length"), ("length", "batch")], {"axes.y": "batch,length"}),
    ],
    ids=["one name for all", "a name of its own", "no names", "named anew"],
)
def test_an_output_that_may_begin_with_the_batch_is_taken(axes, parameters):
    """Exporters name axes as they like; only one that is another of the inputs' is refused."""
    given, gotten = axes
    made = graph([spec("x", (-1, -1), axes=given)], [spec("y", (-1, -1), axes=gotten)])
    config = config_of(inputs=[X], outputs=[tensor("y")], parameters=parameters)
    assert agreed_signature(config, made)


def test_without_batches_outputs_begin_as_they_like():
    """No dimension is cut into requests then."""
    both = [tensor(name, [-1, -1]) for name in "xy"]
    config = config_of(inputs=both[:1], outputs=both[1:], max_batch_size=0)
    assert agreed_signature(config, TRANSPOSED) == TRANSPOSED


def test_rows_that_are_compared_with_each_other_run_alone():
    """With one row in a run there is nothing else that it could hold; nor is what nobody serves."""
    one = config_of(inputs=[X], outputs=[tensor("y")], max_batch_size=1)
    assert agreed_signature(one, SIMILARITY) == SIMILARITY
    more = graph(SIMILARITY.inputs, (*SIMILARITY.outputs, spec("z", (-1, 4), axes=("batch", ""))))
    served = config_of(inputs=[X], outputs=[tensor("z", [4])])
    assert agreed_signature(served, more) == more


def test_an_optional_input_of_the_graph_needs_no_declaration():
    """The graph runs without it, so nobody has to send it."""
    signature = graph([spec("x", (-1, -1)), spec("extra", (-1,), optional=True)])
    assert agreed_signature(config_of(inputs=[X]), signature) == signature


@pytest.mark.parametrize(
    ("config", "signature", "parts"),
    [
        pytest.param(
            {"inputs": [X], "parameters": {"axes.z": "a,b"}},
            GRAPH,
            ["'axes.z'", "tensors are x, y"],
            id="axes of an unknown tensor",
        ),
        pytest.param(
            {"inputs": [X], "parameters": {"axes.x": "a"}},
            GRAPH,
            ["'axes.x' names 1 dimensions", "has 2"],
            id="too few axis names",
        ),
        pytest.param(
            {"inputs": [X, tensor("z")]},
            GRAPH,
            ["input 'z'", "not in the graph", "x"],
            id="input not in the graph",
        ),
        pytest.param(
            {"inputs": [X], "outputs": [tensor("z")]},
            GRAPH,
            ["output 'z'", "not in the graph", "y"],
            id="output not in the graph",
        ),
        pytest.param(
            {"inputs": []},
            GRAPH,
            ["input 'x'", "not in config.pbtxt", "'generate.x'"],
            id="graph input not declared",
        ),
        pytest.param(
            {"inputs": [X], "parameters": {"pad.z": "1"}},
            GRAPH,
            ["'pad.z'", "tensors are x, y"],
            id="padding of an unknown tensor",
        ),
        pytest.param(
            {"inputs": [X], "parameters": {"lengths.z": "n"}},
            TELLING,
            ["'lengths.z'", "axes are frames", "'axes.<output>'"],
            id="lengths of an unknown axis",
        ),
        pytest.param(
            {"inputs": [X], "parameters": {"lengths.frames": "x"}},
            TELLING,
            ["'lengths.frames'", "'x', which is not an output"],
            id="lengths from an input",
        ),
        pytest.param(
            {"inputs": [X], "parameters": {"lengths.frames": "y"}},
            TELLING,
            ["'lengths.frames'", "'y', which is FP32 [?, frames]", "one whole number per row"],
            id="lengths that are no whole numbers",
        ),
        pytest.param(
            {"inputs": [X], "parameters": {"lengths.frames": "wide"}},
            TELLING,
            ["'wide', which is INT64 [?, frames, 2]"],
            id="lengths that are neither numbers nor a mask",
        ),
        pytest.param(
            {"inputs": [X], "parameters": {"generate.z": "mask"}},
            GRAPH,
            ["'generate.z'", "the graph's inputs are x"],
            id="unknown input generated",
        ),
        pytest.param(
            {"inputs": [X], "parameters": {"axes.x": "batch,length"}},
            MASKED,
            ["axis 'sequence' of 'attention_mask'", "that clients send", "'axes.attention_mask'"],
            id="made input of an axis that nothing else has",
        ),
        pytest.param(
            {"inputs": [X]},
            graph([spec("x", (-1, -1)), spec("input_mask", (-1, -1))]),
            ["axis 'input_mask.1' of 'input_mask'", "'axes.input_mask'"],
            id="made input of an axis without a name",
        ),
        pytest.param(
            {"inputs": [tensor("x", [3])]},
            graph([spec("x", (-1, 3)), spec("input_mask", (-1, -1), axes=("", "length"))]),
            ["axis 'length' of 'input_mask'"],
            id="made input beside one of a single size",
        ),
        pytest.param(
            {"inputs": [X], "max_batch_size": 0},
            graph([spec("x", (-1,)), spec("input_mask", (-1,))]),
            ["axis 'input_mask.0' of 'input_mask'", "'axes.input_mask'"],
            id="made input of a model without batches",
        ),
        pytest.param(
            {"inputs": [tensor("x", dtype="TYPE_INT64")]},
            GRAPH,
            ["input 'x'", "TYPE_INT64", "TYPE_FP32"],
            id="input dtype",
        ),
        pytest.param(
            {"inputs": [X], "outputs": [tensor("y", dtype="TYPE_INT64")]},
            GRAPH,
            ["output 'y'", "TYPE_INT64", "TYPE_FP32"],
            id="output dtype",
        ),
        pytest.param(
            {"inputs": [X]},
            graph([spec("x", (1, -1))]),
            ["input 'x'", "no batch dimension", "max_batch_size: 0"],
            id="fixed first dimension",
        ),
        pytest.param(
            {"inputs": [X]},
            graph([spec("x", (-1, -1)), spec("position_ids", (1, -1))]),
            ["input 'position_ids'", "makes for each row", "no batch dimension"],
            id="fixed first dimension of what is made",
        ),
        pytest.param(
            {"inputs": [X]},
            graph([spec("x", ())]),
            ["input 'x' has dims [-1]", "none in the graph", "shape is not in the file"],
            id="scalar where a batch is declared",
        ),
        pytest.param(
            {"inputs": [X], "outputs": [tensor("y", [2])], "max_batch_size": 0},
            graph([spec("x", (-1,))], [spec("y", ())]),
            ["output 'y' has dims [2]", "none in the graph", "one value as dims: [ 1 ], or export"],
            id="output without dimensions",
        ),
        pytest.param(
            {"inputs": [X], "outputs": [tensor("y")]},
            TRANSPOSED,
            [
                "output 'y' is FP32 [length, batch]",
                "'length', which inputs have behind",
                "'axes.y'",
            ],
            id="output with the batch behind another axis",
        ),
        pytest.param(
            {"inputs": [X], "outputs": [tensor("y")]},
            SIMILARITY,
            [
                "output 'y' is FP32 [batch, batch]",
                "comes again",
                "max_batch_size: 0, or 1",
                "'axes.y'",
            ],
            id="output of rows by rows",
        ),
        pytest.param(
            {"inputs": [tensor("x", [3, 4])]},
            GRAPH,
            ["dims [3, 4]", "[-1] in the graph behind the batch dimension"],
            id="rank",
        ),
        pytest.param(
            {"inputs": [tensor("x", [3])], "max_batch_size": 0},
            graph([spec("x", (4,))]),
            ["dims [3]", "[4] in the graph; make"],
            id="size without a batch dimension",
        ),
        pytest.param(
            {"inputs": [X], "outputs": [tensor("y", [3])]},
            graph([spec("x", (-1, -1))], [spec("y", (-1, 4))]),
            ["output 'y'", "[3]", "[4]"],
            id="output size",
        ),
        pytest.param(
            {"inputs": [RAGGED], "batch_input": [COUNTS], "parameters": {"ragged": "pad"}},
            FLAT,
            ["batch_input", "'ragged' is 'pad'"],
            id="batch input of padded inputs",
        ),
        pytest.param(
            {"inputs": [RAGGED], "batch_input": [{**COUNTS, "source_input": ["x", "x"]}]},
            FLAT,
            ["BATCH_ELEMENT_COUNT", "['x', 'x']", "expected one of x"],
            id="two sources",
        ),
        pytest.param(
            {"inputs": [RAGGED], "batch_input": [{**COUNTS, "source_input": ["z"]}]},
            FLAT,
            ["['z']", "expected one of x"],
            id="unknown source",
        ),
        pytest.param(
            {"inputs": [RAGGED], "batch_input": [{**COUNTS, "target_name": []}]},
            FLAT,
            ["BATCH_ELEMENT_COUNT of 'x'", "no target_name"],
            id="no target",
        ),
        pytest.param(
            {"inputs": [RAGGED, tensor("n")], "batch_input": [COUNTS]},
            FLAT,
            ["batch_input 'n'", "also an input"],
            id="target is an input",
        ),
        pytest.param(
            {"inputs": [RAGGED], "batch_input": [COUNTS, COUNTS]},
            FLAT,
            ["batch_input 'n'", "another batch_input"],
            id="target of two batch inputs",
        ),
        pytest.param(
            {"inputs": [RAGGED], "batch_input": [{**COUNTS, "target_name": ["n", "z"]}]},
            FLAT,
            ["batch_input 'z'", "which has x, n"],
            id="target not in the graph",
        ),
        pytest.param(
            {"inputs": [RAGGED], "batch_input": [{**COUNTS, "data_type": "TYPE_INT32"}]},
            FLAT,
            ["batch_input 'n'", "INT32", "FP32"],
            id="dtype of a batch input",
        ),
        pytest.param(
            {"inputs": [RAGGED], "batch_input": [{**COUNTS, "kind": "BATCH_ITEM_SHAPE"}]},
            FLAT,
            ["batch_input 'n'", "2 dimension(s)"],
            id="rank of a batch input",
        ),
        pytest.param(
            {"inputs": [RAGGED], "outputs": [tensor("y")], "batch_output": [SCATTER]},
            graph([spec("x", (-1, -1))], [spec("y", (-1,))]),
            ["input 'x'", "must take it as [-1]"],
            id="concatenated input that is not flat",
        ),
        pytest.param(
            {
                "inputs": [tensor("x", allow_ragged_batch=True, optional=True)],
                "batch_input": [COUNTS],
            },
            FLAT,
            ["input 'x'", "'optional: true'"],
            id="concatenated input that is optional",
        ),
        pytest.param(
            {
                "inputs": [tensor("x", dtype="TYPE_INT64", allow_ragged_batch=True)],
                "batch_input": [COUNTS],
            },
            FLAT,
            ["input 'x'", "TYPE_INT64", "TYPE_FP32"],
            id="dtype of a concatenated input",
        ),
        pytest.param(
            {"inputs": [RAGGED], "batch_input": [COUNTS], "batch_output": [SCATTER]},
            FLAT,
            ["batch_output 'y'", "not a declared output"],
            id="scattered output not declared",
        ),
        pytest.param(
            {
                "inputs": [RAGGED],
                "outputs": [tensor("y", [-1, -1])],
                "batch_input": [COUNTS],
                "batch_output": [SCATTER],
            },
            FLAT,
            ["batch_output 'y'", "[-1, -1]", "has only 1"],
            id="scattered output with more free dims than its source has",
        ),
    ],
)
def test_a_contradiction_names_both_sides(config, signature, parts):
    """Nothing is served from a configuration that the graph does not fit."""
    with pytest.raises(ConfigError) as raised:
        agreed_signature(config_of(**config), signature)
    for part in parts:
        assert part in str(raised.value)


def test_bounds_of_an_axis_follow_its_name():
    """The tighter ones, where `axes.<tensor>` makes one axis of two."""
    inputs = [spec(name, (-1, -1), axes=(f"{name}0", f"{name}1")) for name in "xz"]
    bounded = replace(
        graph(inputs, [spec("y", (-1,))]),
        axis_limits={"x0": 16, "x1": 64, "z1": 32},
        axis_least={"x1": 4, "z1": 3},
    )
    parameters = {"axes.x": "batch,length", "axes.z": "batch,length"}
    config = config_of(inputs=[X, tensor("z")], outputs=[tensor("y", [])], parameters=parameters)
    agreed = agreed_signature(config, bounded)
    assert (agreed.axis_limits["batch"], agreed.axis_limits["length"]) == (16, 32)
    assert agreed.axis_least["length"] == 4
