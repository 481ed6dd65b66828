"""Which fixed dimensions of a compiled file are freed by padding."""

import pytest

from builders import host_config
from builders.host_config import tensor
from ge_backend.errors import ConfigError
from ge_backend.model.layout.freed_dims import free_fixed_dims
from ge_backend.model.layout.layout import build_layout
from ge_backend.tensors import DATA_TYPES, ShapePolicy, Signature, TensorSpec


def config_of(inputs=(), outputs=(), *, rows=8, parameters=None):
    def blocks(tensors):
        return [tensor(name, dims, optional=optional) for name, dims, optional in tensors]

    return host_config.config_of(
        inputs=blocks(inputs), outputs=blocks(outputs), max_batch_size=rows, parameters=parameters
    )


def spec(name, dims, axes=None):
    axes = axes or ("",) * len(dims)
    return TensorSpec(name=name, dtype=DATA_TYPES["FP32"], dims=dims, axes=axes)


def graph(inputs, outputs=(), limits=None):
    return Signature(inputs=tuple(inputs), outputs=tuple(outputs), axis_limits=limits or {})


FIXED = graph([spec("x", (8, 128))], [spec("y", (8, 128)), spec("z", (8, 2))])
SHAPES = ({"x": (8, 128)},)


def shown(signature):
    return [s.describe().removeprefix("FP32 ") for s in (*signature.inputs, *signature.outputs)]


def test_files_that_leave_their_shapes_open_stay_as_they_are():
    """There is nothing to free."""
    config = config_of([("x", [-1], False)])
    assert free_fixed_dims(config, FIXED, ()) is FIXED


def test_rows_are_freed_for_a_model_with_a_batch_dimension():
    """A file for 8 rows serves fewer; without a batch dimension it serves exactly its shape."""
    config = config_of([("x", [128], False)])
    opened = free_fixed_dims(config, FIXED, SHAPES)
    assert shown(opened) == ["[batch, 128]", "[batch, 128]", "[batch, 2]"]
    assert opened.axis_limits == {"batch": 8}
    assert free_fixed_dims(config_of(rows=0), FIXED, SHAPES) == FIXED


def test_dimensions_that_are_declared_free_are_freed():
    """An output follows if it is declared so too."""
    config = config_of([("x", [-1], False)], [("y", [-1], False), ("z", [2], False)])
    opened = free_fixed_dims(config, FIXED, SHAPES)
    assert shown(opened) == ["[batch, x.1]", "[batch, x.1]", "[batch, 2]"]
    assert opened.axis_limits == {"batch": 8, "x.1": 128}
    whole = config_of([("x", [-1], False)], [("y", [128], False)])
    assert shown(free_fixed_dims(whole, FIXED, SHAPES))[1] == "[batch, 128]"


def test_one_size_is_one_axis_and_what_the_backend_makes_follows():
    """Ids of any length, with a mask that clients need not send."""
    signature = graph([spec("ids", (8, 64)), spec("attention_mask", (8, 64)), spec("w", (8, 64))])
    shapes = (dict.fromkeys(("ids", "attention_mask", "w"), (8, 64)),)
    config = config_of([("ids", [-1], False), ("w", [64], False)])
    opened = free_fixed_dims(config, signature, shapes)
    assert shown(opened) == ["[batch, ids.1]", "[batch, ids.1]", "[batch, 64]"]


def test_names_of_the_file_are_kept():
    """A fixed dimension may have a name."""
    signature = graph([spec("x", (8, 64), ("rows", "sequence"))])
    opened = free_fixed_dims(config_of([("x", [-1], False)]), signature, ({"x": (8, 64)},))
    assert shown(opened) == ["[rows, sequence]"]


def test_first_dimensions_that_differ_are_no_rows():
    """The agreement then says that there is no batch dimension."""
    signature = graph([spec("a", (8, 4)), spec("b", (2, 4))])
    shapes = ({"a": (8, 4), "b": (2, 4)},)
    config = config_of([("a", [4], False), ("b", [4], False)])
    assert shown(free_fixed_dims(config, signature, shapes)) == ["[8, 4]", "[2, 4]"]
    with pytest.raises(ConfigError, match="first dimension is not free"):
        build_layout(config, signature, ShapePolicy(runs="prepared", fixed=shapes))


def test_what_is_free_already_stays_so():
    """Gears: the batch differs between them, and the length does not."""
    signature = graph([spec("x", (-1, 64), ("batch", ""))], limits={"batch": 4})
    shapes = ({"x": (1, 64)}, {"x": (4, 64)})
    opened = free_fixed_dims(config_of([("x", [-1], False)]), signature, shapes)
    assert shown(opened) == ["[batch, x.1]"]
    assert opened.axis_limits == {"batch": 4, "x.1": 64}


@pytest.mark.parametrize("dims", [[-1, -1], []])
def test_a_declaration_of_another_rank_frees_nothing(dims):
    """It is refused when configuration and graph are compared."""
    config = config_of([("x", dims, False)])
    assert shown(free_fixed_dims(config, FIXED, SHAPES))[0] == "[batch, 128]"
    with pytest.raises(ConfigError, match="make them agree"):
        build_layout(config, FIXED, ShapePolicy(runs="prepared", fixed=SHAPES))


def test_scalars_have_nothing_to_free():
    """And no rows either."""
    signature = graph([spec("x", ())])
    assert shown(free_fixed_dims(config_of(), signature, ({"x": ()},))) == ["[]"]


def test_the_layout_pads_what_was_freed():
    """Up to the file's sizes, and outputs are cut."""
    config = config_of([("x", [-1], False)], [("y", [-1], False), ("z", [2], False)])
    layout = build_layout(config, FIXED, ShapePolicy(runs="prepared", fixed=SHAPES))
    assert layout.axes == ("x.1",)
    assert layout.limits["x.1"] == 128
    assert layout.outputs[0].axes == (0,)
