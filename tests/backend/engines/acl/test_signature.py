"""From shapes to free dimensions and axes."""

import pytest

from ge_backend.engines.acl.description import Tensor
from ge_backend.engines.acl.signature import free_signature, signature_of
from ge_backend.errors import ModelError
from ge_backend.tensors import DATA_TYPES


def tensor(name, dims=()):
    return Tensor(name=name, dtype=DATA_TYPES["FP32"], dims=dims, nbytes=0)


def read(inputs, outputs, *, names=None, labels=()):
    """Return the signature of a model with these shapes; each is a list, one per gear."""
    runs = [
        (
            {name: shapes[at] for name, shapes in inputs.items()},
            {name: shapes[at] for name, shapes in outputs.items()},
        )
        for at in range(len(next(iter(inputs.values()))))
    ]
    return signature_of(
        [tensor(name) for name in inputs],
        [tensor(name) for name in outputs],
        runs,
        names or {},
        labels,
    )


def shown(signature):
    return [spec.describe() for spec in (*signature.inputs, *signature.outputs)]


def test_what_never_differs_is_fixed():
    """One shape has no free dimension at all."""
    signature = read({"x": [(8, 128)]}, {"y": [(8, 2)]})
    assert shown(signature) == ["FP32 [8, 128]", "FP32 [8, 2]"]
    assert signature.axis_limits == {}


def test_what_differs_is_free_up_to_the_largest():
    """The first dimension is the batch, others are called after the first input that has them."""
    signature = read(
        {"ids": [(1, 16), (8, 16), (8, 64)], "mask": [(1, 16), (8, 16), (8, 64)]},
        {"y": [(1, 16, 4), (8, 16, 4), (8, 64, 4)], "pooled": [(1, 4), (8, 4), (8, 4)]},
    )
    assert shown(signature) == [
        "FP32 [batch, ids.1]",
        "FP32 [batch, ids.1]",
        "FP32 [batch, ids.1, 4]",
        "FP32 [batch, 4]",
    ]
    assert signature.axis_limits == {"batch": 8, "ids.1": 64}


def test_images_have_two_axes():
    """Height and width differ in different ways; the batch does not differ."""
    signature = read({"x": [(1, 3, 8, 16), (1, 3, 4, 32)]}, {"y": [(1, 8, 16), (1, 4, 32)]})
    assert shown(signature) == ["FP32 [1, 3, x.2, x.3]", "FP32 [1, x.2, x.3]"]


def test_rows_and_lengths_that_are_equal_by_chance_are_two_axes():
    """A first dimension is never the same axis as another one."""
    signature = read({"x": [(2, 2), (4, 4)]}, {"y": [(2,), (4,)], "z": [(1, 2), (1, 4)]})
    assert shown(signature) == ["FP32 [batch, x.1]", "FP32 [batch]", "FP32 [1, x.1]"]


def test_a_dimension_that_follows_no_input_has_no_name():
    """Half the length is an axis that nobody can tell."""
    signature = read({"x": [(1, 16), (1, 64)]}, {"y": [(1, 8), (1, 32)]})
    assert signature.output("y").dims == (1, -1)
    assert signature.output("y").axes == ("", "")


def test_two_kinds_of_rows_are_no_batch():
    """First dimensions that differ from each other are each called after their input."""
    signature = read({"a": [(1,), (2,)], "b": [(3,), (9,)]}, {"y": [(3,), (9,)]})
    assert shown(signature) == ["FP32 [a.0]", "FP32 [b.0]", "FP32 [b.0]"]


def test_a_batch_that_became_another_dimension():
    """An output that is transposed still follows the batch."""
    signature = read({"x": [(1, 5), (4, 5)]}, {"y": [(5, 1), (5, 4)]})
    assert shown(signature) == ["FP32 [batch, 5]", "FP32 [5, batch]"]


def test_names_are_taken_from_the_file_beside():
    """For tensors that it names, and for what is equal to them in others."""
    signature = read(
        {"ids": [(1, 16), (8, 64)], "mask": [(1, 16), (8, 64)]},
        {"y": [(1, 16), (8, 64)]},
        names={"ids": ("rows", "sequence")},
    )
    assert shown(signature) == ["FP32 [rows, sequence]"] * 3
    assert signature.axis_limits == {"rows": 8, "sequence": 64}


def test_names_can_tell_apart_what_is_always_equal():
    """Source and target of a translation may be compiled for equal lengths only."""
    signature = read(
        {"source": [(1, 16), (8, 64)], "target": [(1, 16), (8, 64)]},
        {"y": [(1, 16), (8, 64)]},
        names={"source": ("batch", "s"), "target": ("batch", "t"), "y": ("batch", "t")},
    )
    assert shown(signature) == ["FP32 [batch, s]", "FP32 [batch, t]", "FP32 [batch, t]"]
    assert signature.axis_limits == {"batch": 8, "s": 64, "t": 64}


def test_one_name_for_two_sizes_is_refused():
    """Dimensions of one name have one size."""
    with pytest.raises(ModelError, match=r"dimension 1 of input 'b' is named 'n'.*3, 9.*1, 2"):
        read({"a": [(1,), (2,)], "b": [(7, 3), (7, 9)]}, {}, names={"a": ("n",), "b": ("", "n")})


def test_names_for_another_rank_are_refused():
    """Both are shown."""
    with pytest.raises(ModelError, match=r"'x' has 2 dimensions \[-1, 5\], and 1 names: batch"):
        read({"x": [(1, 5), (2, 5)]}, {}, names={"x": ("batch",)})


# Labels: what the names of a grid's files say.


def test_labels_free_what_they_say_even_if_it_is_always_the_same():
    """A single file called 8x64 serves up to 8 rows of up to 64."""
    signature = read({"x": [(8, 64, 3)]}, {"y": [(8, 3)]}, labels=[(8, 64)])
    assert shown(signature) == ["FP32 [batch, x.1, 3]", "FP32 [batch, 3]"]
    assert signature.axis_limits == {"batch": 8, "x.1": 64}


def test_an_output_of_an_axis_size_is_not_cut_by_chance():
    """64 features beside 64 tokens: what never differs is only free as rows."""
    signature = read({"x": [(8, 64)]}, {"y": [(8, 64)]}, labels=[(8, 64)])
    assert shown(signature) == ["FP32 [batch, x.1]", "FP32 [batch, 64]"]
    varying = read({"x": [(8, 64), (8, 32)]}, {"y": [(8, 64)] * 2}, labels=[(8, 64), (8, 32)])
    assert shown(varying) == ["FP32 [batch, x.1]", "FP32 [batch, 64]"]


def test_a_label_must_say_all_that_varies():
    """A dimension that differs between files and is in no name is refused."""
    with pytest.raises(ModelError, match="dimension 1 of input 'x' is 16, 32 in the files 1, 2;"):
        read({"x": [(1, 16), (2, 32)]}, {}, labels=[(1,), (2,)])


def test_a_label_must_be_true():
    """A name that says what its file is not is refused with what it is."""
    with pytest.raises(
        ModelError, match="dimension 0 of input 'x' is 1, 2 in the files 1x16, 4x16"
    ):
        read({"x": [(1, 16), (2, 16)]}, {}, labels=[(1, 16), (4, 16)])
    with pytest.raises(ModelError, match=r"say 4, which is not a first dimension.*x \[1 x 16\]"):
        read({"x": [(1, 16)]}, {}, labels=[(4, 16)])
    with pytest.raises(ModelError, match="say 99, which is not a dimension behind the first"):
        read({"x": [(1, 16)]}, {}, labels=[(1, 99)])


# Dimensions that vary freely.


def test_free_dimensions_have_the_names_that_they_are_given():
    """Without names nothing is known to be equal."""
    inputs, outputs = [tensor("x", (-1, -1))], [tensor("y", (-1,))]
    nameless = free_signature(inputs, outputs, {}, {"x": (8, -1)})
    assert shown(nameless) == ["FP32 [?, ?]", "FP32 [?]"]
    assert nameless.axis_limits == {}
    names = {"x": ("batch", "length"), "y": ("batch",)}
    named = free_signature(inputs, outputs, names, {"x": (8, -1)})
    assert shown(named) == ["FP32 [batch, length]", "FP32 [batch]"]
    assert named.axis_limits == {"batch": 8}


def test_the_least_limit_of_an_axis_counts():
    """Two inputs of one axis may have different ranges."""
    inputs = [tensor("a", (-1,)), tensor("b", (-1,))]
    names = {"a": ("n",), "b": ("n",)}
    assert free_signature(inputs, [], names, {"a": (9,), "b": (7,)}).axis_limits == {"n": 7}
