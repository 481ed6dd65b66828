"""Which buckets a model gets, from what it says, what its graph takes, and what traffic needs."""

import itertools
import math
from dataclasses import replace

import pytest

from builders.histograms import histogram_of
from ge_backend.errors import ConfigError
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import InputLayout, Layout
from ge_backend.shapes.buckets.build import DEFAULT_MEASURED_ELEMENTS, build_grid
from ge_backend.tensors import ANY_SHAPE, DATA_TYPES, PREPARED


@pytest.fixture
def grid(tmp_path):
    """Return a function that builds the grid of a model with one axis, `length`, or others."""

    def build(
        *,
        rows=8,
        axes=("length",),
        equal_axes=(),
        limits=None,
        fixed=None,
        least=None,
        least_rows=1,
        static=True,
        traffic=None,
        file=None,
        **given,
    ):
        if file is not None:
            (tmp_path / "buckets.txt").write_text(file)
            given["buckets"] = "file:buckets.txt"
        config = ModelConfig.read(
            {
                "name": "m",
                "max_batch_size": rows,
                "parameters": {
                    key.replace("__", "."): {"string_value": str(value)}
                    for key, value in given.items()
                },
            },
            directory=tmp_path / "1",
            version="1",
            environment={},
        )
        layout = Layout(
            batched=rows > 0,
            axes=axes,
            equal_axes=equal_axes,
            limits=limits or {},
            inputs=(),
            outputs=(),
            sizes=fixed or {},
            least=least or {},
            least_rows=least_rows,
        )
        shape_policy = PREPARED if static else ANY_SHAPE
        return build_grid(config, layout, shape_policy, traffic=traffic or {})

    return build


def sizes(grid, name):
    return next(axis.values for axis in grid.axes if axis.name == name)


def test_nothing_configured(grid):
    """Rows double up to max_batch_size; an axis from 16 up to max_length, which has a default."""
    built = grid(rows=8)
    assert sizes(built, "rows") == (1, 2, 4, 8)
    assert sizes(built, "length") == (16, 32, 64, 128, 256, 512)
    assert built.entries == tuple(itertools.product(sizes(built, "rows"), sizes(built, "length")))
    assert sizes(grid(max_length=100), "length")[-1] == 100


def test_the_graph_knows_best(grid):
    """The graph's own limit comes before max_length, and cuts what is configured."""
    assert sizes(grid(limits={"length": 64}, max_length=4096), "length") == (16, 32, 64)
    configured = grid(limits={"length": 50}, buckets__length="8,32,128,256")
    assert sizes(configured, "length") == (8, 32, 50)
    assert sizes(grid(rows=6, buckets__rows="1,4,16"), "rows") == (1, 4, 6)


def test_a_size_that_is_fixed_is_the_only_one(grid):
    """Nothing is padded along it, unless that is asked for."""
    fixed = {"axes": ("length", "features"), "fixed": {"features": 80}}
    assert sizes(grid(**fixed), "features") == (80,)
    assert sizes(grid(**fixed), "length") == (16, 32, 64, 128, 256, 512)
    assert sizes(grid(**fixed, buckets__features="96"), "features") == (96,)


def test_no_bucket_is_below_the_least_that_the_graph_takes(grid):
    """It could not be prepared; the least itself is there then."""
    least = {"least": {"length": 20}}
    assert sizes(grid(**least), "length") == (20, 32, 64, 128, 256, 512)
    assert sizes(grid(**least, buckets__length="2,8"), "length") == (20,)
    assert sizes(grid(**least, buckets__length="32,64"), "length") == (32, 64)
    assert sizes(grid(least_rows=3), "rows") == (3, 4, 8)
    assert sizes(grid(least_rows=3, buckets__rows="1,8"), "rows") == (3, 8)
    assert sizes(grid(least_rows=12), "rows") == (12,)  # however few the host hands over


def test_without_a_batch_dimension_there_is_one_row(grid):
    """The host hands over one request as it is."""
    assert grid(rows=0).names == ("rows", "length")
    assert sizes(grid(rows=0), "rows") == (1,)
    assert sizes(grid(rows=0, buckets__rows="1,2,4"), "rows") == (1,)


def test_without_a_ragged_axis_only_rows_are_left(grid):
    """A bucket is then a number of rows."""
    assert grid(axes=(), rows=4).entries == ((1,), (2,), (4,))


def test_strategies_and_lists(grid):
    """Each axis is configured on its own, by a list or by a rule."""
    built = grid(
        axes=("query", "doc"), buckets__rows="4,1", buckets__doc="linear(min=32, step=32, max=96)"
    )
    assert sizes(built, "rows") == (1, 4)
    assert sizes(built, "query") == (16, 32, 64, 128, 256, 512)
    assert sizes(built, "doc") == (32, 64, 96)


def test_a_file_says_everything(grid):
    """Its buckets are the grid, not a product of axes."""
    built = grid(file="(1, [8, 64])\n(8, 8)\n")
    assert built.entries == ((1, 8), (1, 64), (8, 8))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"buckets__width": "1,2"}, "'buckets.width': this model has buckets.rows, buckets.length"),
        (
            {"buckets__width": "1,2", "equal_axes": ("width",)},
            "buckets.rows, buckets.length; 'width' is not padded: that takes allow_ragged_batch",
        ),
        ({"buckets__length": "0,8"}, "'buckets.length' is '0,8': size 0"),
        ({"buckets__length": "linear(8, 8, 4)"}, "min is 8, expected at most max"),
        ({"file": "(1, 8)\n", "buckets__rows": "1"}, "'buckets' and 'buckets.rows'"),
        ({"file": "# nothing\n"}, "buckets.txt has no entries"),
        ({"file": "(1, 8)\n(1, 8, 0)\n"}, "buckets.txt, line 2"),
        ({"file": "(16, 8)\n"}, "rows is 16 in a bucket, the model takes at most 8"),
        ({"file": "(1, 80)\n", "limits": {"length": 64}}, "length is 80 in a bucket"),
        (
            {"file": "(1, 8)\n", "least": {"length": 9}},
            "length is 8 in a bucket, the model takes at",
        ),
        (
            {"file": "(1, 8)\n", "least_rows": 2},
            "rows is 1 in a bucket, the model takes at least 2",
        ),
        ({"max_elements": 500, "buckets__rows": "4,8"}, "parameter 'max_elements': bucket 4x128"),
        ({"max_graphs": 1, "file": "(1, 64)\n", "axes": ("rows",)}, "is called 'rows'"),
        (
            {
                "buckets__rows": "linear(1, 1, 1000)",
                "rows": 1000,
                "buckets__length": "linear(1, 1, 1000)",
            },
            "make 1000000 buckets",
        ),
    ],
)
def test_what_cannot_be_used(grid, given, said):
    """The error names the parameter or the file, and what was expected."""
    with pytest.raises(ConfigError) as caught:
        grid(**given)
    assert said in str(caught.value)


def test_a_budget_of_elements(grid):
    """No bucket is beyond it, and each size keeps a bucket with fewer rows."""
    built = grid(max_elements=1024)
    assert max(map(math.prod, built.entries)) == 1024
    assert {entry[1] for entry in built.entries} == {16, 32, 64, 128, 256, 512}


def test_measuring_is_bounded_where_nothing_is_configured(grid):
    """An engine that runs any shape is not kept from serving by its largest ones."""
    built = grid(rows=64, static=False)
    beyond = [entry for entry in built.entries if math.prod(entry) > DEFAULT_MEASURED_ELEMENTS]
    assert beyond == []
    assert {entry[1] for entry in built.entries} == {16, 32, 64, 128, 256, 512}
    assert (64, 512) in grid(rows=64, static=True).entries
    assert (64, 512) in grid(rows=64, static=False, buckets__length="512").entries


def test_every_number_of_rows_is_measured_at_the_smallest_sizes(grid):
    """Else more rows would seem to cost as many times one, and nothing would be batched."""
    built = grid(rows=8, axes=("depth", "height", "width"), static=False)
    assert {rows for rows, *sizes in built.entries if sizes == [16, 16, 16]} == {1, 2, 4, 8}
    assert max(math.prod(entry) for entry in built.entries if entry[0] > 1) == 8 * 16**3


def test_a_budget_of_graphs_follows_traffic(grid):
    """What traffic needs stays; without traffic every bucket is as likely; sizes stay covered."""
    traffic = {
        "rows": histogram_of({8: 100}),
        "length": histogram_of({16: 900, 64: 90, 512: 10}),
    }
    built = grid(max_graphs=4, traffic=traffic)
    assert len(built.entries) == 4
    assert {(8, 16), (8, 64), (8, 512)} <= set(built.entries)
    blind = grid(max_graphs=4)
    assert len(blind.entries) == 4
    assert (8, 512) in blind.entries
    with pytest.raises(ConfigError, match="max_graphs is 1"):
        grid(max_graphs=1, axes=("q", "d"), file="(1, 8, 64)\n(1, 64, 8)\n")


def test_traffic_of_other_axes_is_not_used(grid):
    """After a change of the model's axes the old record says nothing about the new ones."""
    assert (
        grid(max_graphs=4, traffic={"rows": histogram_of({1: 5})}).entries
        == grid(max_graphs=4).entries
    )


# A file that runs in a list of shapes and no others.

X = InputLayout(
    name="x",
    dtype=DATA_TYPES["FP32"],
    dims=(-1, 3),
    axes=(0, -1),
    names=("length", ""),
    fill=0.0,
    made="",
)
COMPILED = tuple({"x": (rows, length, 3)} for rows, length in ((1, 8), (4, 8), (4, 32)))


@pytest.fixture
def compiled(tmp_path):
    """Return a function that builds the grid of a compiled file."""

    def build(*, inputs=(X,), shapes=COMPILED, rows=4, file=None, **given):
        if file is not None:
            (tmp_path / "buckets.txt").write_text(file)
            given["buckets"] = "file:buckets.txt"
        parameters = {
            key.replace("__", "."): {"string_value": str(value)} for key, value in given.items()
        }
        config = ModelConfig.read(
            {"name": "m", "max_batch_size": rows, "parameters": parameters},
            directory=tmp_path / "1",
            version="1",
            environment={},
        )
        layout = Layout(
            batched=rows > 0, axes=("length",), limits={}, inputs=tuple(inputs), outputs=()
        )
        return build_grid(config, layout, replace(PREPARED, fixed=shapes), traffic={})

    return build


def test_the_buckets_of_a_compiled_file_are_its_shapes(compiled):
    """Whatever they would be by default."""
    assert compiled().entries == ((1, 8), (4, 8), (4, 32))


def test_a_compiled_file_without_a_batch_dimension_has_one_row(compiled):
    """All dimensions are the request's own."""
    whole = replace(X, dims=(-1,), axes=(0,), names=("length",))
    grid = compiled(inputs=[whole], shapes=({"x": (8,)}, {"x": (32,)}), rows=0)
    assert grid.entries == ((1, 8), (1, 32))


def test_what_is_configured_may_repeat_the_file(compiled):
    """In any order, by axis or by bucket."""
    assert compiled(buckets__rows="4,1").entries == compiled().entries
    assert compiled(buckets__length="8,32").entries == compiled().entries
    assert compiled(file="(1, 8)\n(4, [8, 32])\n").entries == compiled().entries


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"buckets__rows": "1,2,4"}, r"'buckets.rows' is '1,2,4', but .* runs only with 1, 4"),
        ({"buckets__length": "8,32,64"}, r"buckets.length.* runs only with 8, 32; remove it"),
        ({"buckets__width": "8"}, r"'buckets.width': this model has buckets.rows, buckets.length"),
        ({"file": "(1, 8)\n"}, r"buckets.txt lists 1x8, but the model file runs only in 1x8, 4x8"),
    ],
)
def test_what_is_configured_must_not_contradict_the_file(compiled, given, words):
    """Both sides are shown, and what to do."""
    with pytest.raises(ConfigError, match=words):
        compiled(**given)


def test_a_budget_leaves_gears_out(compiled):
    """They stay in the file, and are not used."""
    with pytest.raises(ConfigError, match="raise the budget"):
        compiled(max_elements=100)
    assert compiled(max_elements=128).entries == ((1, 8), (4, 8), (4, 32))


def test_shapes_that_are_no_bucket_are_refused(compiled):
    """Two inputs of one axis with different sizes cannot be padded to."""
    other = replace(X, name="z")
    shapes = ({"x": (1, 8, 3), "z": (1, 16, 3)},)
    with pytest.raises(ConfigError, match=r"x 1x8x3, z 1x16x3, which is not one number of rows"):
        compiled(inputs=[X, other], shapes=shapes)
    rows = ({"x": (1, 8, 3), "z": (2, 8, 3)},)
    with pytest.raises(
        ConfigError, match=r"name the dimensions of '[xz]' with the parameter 'axes"
    ):
        compiled(inputs=[X, other], shapes=rows)


GEARS = {"graph__ge__inputShape": "x:-1,-1,3", "graph__ge__dynamicDims": "1,8;4,8;4,32"}


def test_declared_gears_are_the_buckets(compiled):
    """Exactly these, and not their product; a budget of elements counts for them too."""
    assert compiled(shapes=(), **GEARS).entries == ((1, 8), (4, 8), (4, 32))
    with pytest.raises(ConfigError, match="raise the budget"):
        compiled(shapes=(), max_elements=100, **GEARS)


def test_gears_and_buckets_exclude_each_other(compiled):
    """Both say which buckets there are."""
    for given in ({"buckets__rows": "1,2"}, {"file": "(1, 8)\n"}):
        with pytest.raises(ConfigError, match="keep one of them"):
            compiled(shapes=(), **given, **GEARS)


def test_gears_may_repeat_those_of_a_compiled_file(compiled):
    """And not name others."""
    assert compiled(**GEARS).entries == compiled().entries
    other = {**GEARS, "graph__ge__dynamicDims": "1,8;4,8"}
    with pytest.raises(ConfigError, match="lists other gears than the model file has"):
        compiled(**other)
