"""Bounds for runs that were not measured come from larger ones that were, and from no others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.device.scratch import ScratchTable, smaller_inputs
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec

SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 40))


def table(**peaks):
    """Return a table of `x` with shapes such as `r4s8`."""
    made = ScratchTable()
    for name, peak in peaks.items():
        rows, size = name.removeprefix("r").split("s")
        made.add({"x": (int(rows), int(size))}, peak)
    return made


def test_a_measured_run_is_itself():
    """Its own peak counts, though a larger run took less; in whole pages."""
    measured = table(r1s8=9000, r4s8=4096)
    assert measured.bound({"x": (1, 8)}) == 12288
    assert measured.bound({"x": (4, 8)}) == 4096


def test_another_run_is_bounded_by_the_least_that_covers_it():
    """In every dimension of every input."""
    measured = table(r8s64=40960, r8s16=16384, r1s64=8192)
    assert measured.bound({"x": (2, 10)}) == 16384
    assert measured.bound({"x": (1, 10)}) == 8192
    assert measured.bound({"x": (2, 64)}) == 40960


def test_what_nothing_covers_is_unknown():
    """More rows, another input, other dimensions: 0."""
    measured = table(r8s64=40960)
    assert measured.bound({"x": (9, 1)}) == 0
    assert measured.bound({"y": (1, 1)}) == 0
    assert measured.bound({"x": (1,)}) == 0
    assert measured.bound({"x": (1, 1), "y": (1,)}) == 0


def test_what_could_not_be_measured_is_unknown():
    """A peak of 0 is no bound of 0."""
    assert table(r1s1=0).bound({"x": (1, 1)}) == 0
    assert table(r1s1=0, r2s2=4096).bound({"x": (1, 1)}) == 4096


@given(st.dictionaries(SHAPES, st.integers(1, 10**9), max_size=12), SHAPES)
def test_a_bound_is_never_below_what_a_covered_run_took(peaks, asked):
    """For whatever was measured, in whatever order."""
    measured = ScratchTable()
    for shape, peak in peaks.items():
        measured.add({"x": shape}, peak)
    covering = [p for (r, s), p in peaks.items() if r >= asked[0] and s >= asked[1]]
    bound = measured.bound({"x": asked})
    assert bound >= min(covering, default=0)
    assert bool(bound) == bool(covering)


def signature(**axes):
    """Return a signature of inputs with these names of dimensions; "" is one without."""
    specs = tuple(
        TensorSpec(name=name, dtype=DATA_TYPES["INT64"], dims=(-1,) * len(names), axes=names)
        for name, names in axes.items()
    )
    return Signature(inputs=specs, outputs=(), axis_limits={})


def test_smaller_inputs_agree_along_their_axes():
    """Each axis is cut alike in all inputs; without a name it stays, and so do scalars."""
    given = {
        "ids": np.arange(8 * 64).reshape(8, 64),
        "lengths": np.full(8, 64),
        "free": np.zeros((8, 5)),
        "scale": np.zeros(()),
    }
    named = signature(ids=("batch", "length"), lengths=("batch",), free=("batch", ""), scale=())
    made = smaller_inputs(given, named)
    cuts = {one["ids"].shape for one in made}
    assert cuts == {(r, n) for r in (1, 2, 8) for n in (4, 16, 64)} - {(8, 64)}
    sizes = [sum(array.size for array in one.values()) for one in made]
    assert sizes == sorted(sizes)
    for one in made:
        rows = one["ids"].shape[0]
        shapes = [one[name].shape for name in ("lengths", "free", "scale")]
        assert shapes == [(rows,), (rows, 5), ()]
        assert one["ids"].base is not None
        assert one["ids"][0, 0] == 0


def test_what_cannot_be_cut_has_no_smaller_inputs():
    """One row, no axis with a name, or inputs of another graph."""
    assert smaller_inputs({"x": np.zeros((1,))}, signature(x=("batch",))) == []
    assert smaller_inputs({"x": np.zeros((9,))}, signature(x=("",))) == []
    assert smaller_inputs({"y": np.zeros((9,))}, signature(x=("batch",))) == []
    assert smaller_inputs({"x": np.zeros((9, 9))}, signature(x=("batch",))) == []


def test_what_has_no_dimensions_stays_an_array():
    """An engine takes no number of numpy's own."""
    specs = [("x", (-1,), ("batch",)), ("rate", (), ())]
    signature = Signature(
        inputs=tuple(
            TensorSpec(name=name, dtype=DATA_TYPES["FP32"], dims=dims, axes=axes)
            for name, dims, axes in specs
        ),
        outputs=(),
        axis_limits={},
    )
    given = {"x": np.zeros(32, np.float32), "rate": np.array(3, np.float32)}
    made = smaller_inputs(given, signature)
    assert [one["x"].shape for one in made] == [(2,), (8,)]
    assert all(isinstance(one["rate"], np.ndarray) for one in made)
