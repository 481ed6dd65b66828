"""Which tensors stay on the device, and which go through the host."""

from dataclasses import replace

import pytest

from ge_backend.executor.protocol.messages import TensorMemory
from ge_backend.model.config.model import TensorConfig
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.ensemble.dag import read_dag
from ge_backend.serving.ensemble.retention import Place, StepRetention, step_retentions
from ge_backend.tensors import DATA_TYPES

HERE = TensorMemory(id=1, name="acl of a", alignment=64)


def tensor(cls, name, dims, axes=None, dtype="FP32", **more):
    axes = axes or tuple(0 if dim < 0 else -1 for dim in dims)
    if cls is InputLayout:
        more = {"fill": 0.0, "made": "", **more}
    names = tuple("n" if axis >= 0 else "" for axis in axes)
    return cls(name=name, dtype=DATA_TYPES[dtype], dims=dims, axes=axes, names=names, **more)


def taken(dims=(-1, 16), **more):
    return tensor(InputLayout, "x", dims, **more)


def given(dims=(-1, 16), **more):
    return tensor(OutputLayout, "y", dims, **more)


def declared(name, dims, graph_dims=None):
    return TensorConfig(
        name=name,
        dtype=DATA_TYPES["FP32"],
        dims=dims,
        graph_dims=graph_dims or dims,
        ragged=False,
        optional=False,
    )


def place(step, x=None, y=None, memory=HERE, **layout):
    x, y = x or taken(), y or given()
    return Place(
        step=step,
        layout=Layout(
            **{
                "batched": True,
                "axes": ("n",),
                "limits": {},
                "inputs": (x,),
                "outputs": (y,),
                **layout,
            }
        ),
        inputs={"x": declared("x", x.dims)},
        outputs={"y": declared("y", y.dims)},
        memory=memory,
    )


def dag_of(*links, outputs=("Z",)):
    """Return an ensemble of steps x -> y; a link is (the tensor it takes, the one it writes)."""
    steps = [
        {"model_name": f"m{at}", "input_map": {"x": source}, "output_map": {"y": target}}
        for at, (source, target) in enumerate(links)
    ]
    return read_dag(
        {
            "name": "e",
            "input": [{"name": "X"}],
            "output": [{"name": name} for name in outputs],
            "ensemble_scheduling": {"step": steps},
        }
    )


CHAIN = dag_of(("X", "A"), ("A", "Z"))
STAYS = [StepRetention(outputs={"y": False}, frees=True), StepRetention(inputs=frozenset({"x"}))]
NOTHING = [StepRetention(), StepRetention()]


def chain(writer=None, reader=None):
    """Return what stays of two steps; changes are those of `place`."""
    first, second = CHAIN.steps
    return step_retentions(CHAIN, [place(first, **(writer or {})), place(second, **(reader or {}))])


def test_what_goes_from_step_to_step_stays():
    """The client's tensor and the ensemble's output go through the host."""
    assert chain() == STAYS


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ({"memory": None}, {}),
        ({}, {"memory": None}),
        ({}, {"memory": replace(HERE, name="torch of a")}),
        ({"memory": replace(HERE, name="")}, {"memory": replace(HERE, name="")}),
        ({"batched": False}, {}),
        ({}, {"batched": False}),
        ({"concatenated": True}, {}),
        ({"y": given(source="x")}, {}),
        ({"y": given(lengths=("l", ""))}, {}),
        ({"y": given(axes=(-1, -1))}, {}),  # only the graph knows how long
        ({"y": given(dtype="BYTES")}, {"x": taken(dtype="BYTES")}),
        ({"y": given(dtype="FP16")}, {}),
        ({}, {"x": taken(source="x")}),
        ({}, {"x": taken(fill=1.0)}),  # padding of several bytes
        ({"y": given((-1, 8))}, {"x": taken((-1, 8))}),  # 32 bytes
        ({"y": given((8,))}, {"x": taken((8,))}),
        ({"y": given((-1, -1))}, {"x": taken((-1, -1))}),  # two dimensions vary
        ({}, {"x": taken((-1, -1))}),
        ({"y": given((-1,))}, {"x": taken((-1, 16))}),
    ],
)
def test_what_cannot_be_copied_row_by_row_goes_through_the_host(writer, reader):
    """As all tensors did before."""
    assert chain(writer, reader) == NOTHING


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ({"y": given((16,))}, {"x": taken((16,))}),  # 64 bytes each
        ({"y": given((8, 2))}, {"x": taken((8, 2))}),
        ({"y": given((8, 16))}, {"x": taken((-1, 16))}),
        ({}, {"x": taken((8, 16))}),
        ({"y": given((8, 2))}, {"x": taken((8, 2), fill=1.0)}),  # nothing is padded
        ({"y": given((-1, 32), dtype="FP16")}, {"x": taken((-1, 32), dtype="FP16")}),
    ],
)
def test_rows_that_end_at_the_alignment_stay(writer, reader):
    """With or without a dimension that varies."""
    assert chain(writer, reader) == STAYS


def test_any_rows_stay_where_any_byte_can_be_copied():
    """As on torch's devices."""
    anywhere = {"memory": replace(HERE, alignment=1)}
    narrow = ({"y": given((-1,)), **anywhere}, {"x": taken((-1,)), **anywhere})
    assert chain(*narrow) == STAYS


def test_a_reshape_is_made_on_the_host():
    """On either side."""
    first, second = map(place, CHAIN.steps)
    reshaped = {"y": declared("y", (-1, 16), (-1, 4, 4))}
    assert step_retentions(CHAIN, [replace(first, outputs=reshaped), second]) == NOTHING
    reshaped = {"x": declared("x", (-1, 16), (-1, 4, 4))}
    assert step_retentions(CHAIN, [first, replace(second, inputs=reshaped)]) == NOTHING


def test_what_a_client_sees_is_downloaded_as_well():
    """Once; the next step still takes what has stayed."""
    dag = dag_of(("X", "A"), ("A", "Z"), outputs=("A", "Z"))
    assert step_retentions(dag, list(map(place, dag.steps))) == [
        StepRetention(outputs={"y": True}, frees=True),
        StepRetention(inputs=frozenset({"x"})),
    ]


def test_what_some_steps_take_elsewhere_is_downloaded_as_well():
    """One reader is on the device, the other one on another."""
    dag = dag_of(("X", "A"), ("A", "Z"), ("A", "B"), outputs=("Z", "B"))
    first, second, third = dag.steps
    places = [place(first), place(second), place(third, memory=replace(HERE, name="acl of b"))]
    assert step_retentions(dag, places) == [
        StepRetention(outputs={"y": True}, frees=True),
        StepRetention(inputs=frozenset({"x"})),
        StepRetention(),
    ]


def test_a_tensor_may_stay_for_several_steps():
    """It is kept once."""
    dag = dag_of(("X", "A"), ("A", "Z"), ("A", "B"))
    kept = step_retentions(dag, list(map(place, dag.steps)))
    assert [step.outputs for step in kept] == [{"y": False}, {}, {}]
    assert [step.inputs for step in kept] == [set(), {"x"}, {"x"}]


def test_what_nobody_takes_is_unrequested():
    """Where it would have to be downloaded; on a CPU it is in host memory already."""
    dag = dag_of(("X", "A"), ("X", "Z"))
    assert step_retentions(dag, list(map(place, dag.steps))) == [
        StepRetention(unrequested=frozenset({"y"})),
        StepRetention(),
    ]
    for memory in (None, replace(HERE, name="")):
        places = [place(step, memory=memory) for step in dag.steps]
        assert step_retentions(dag, places) == NOTHING


def test_an_output_that_the_ensemble_does_not_name_is_unrequested_unless_it_tells_sizes():
    """The graph has it all the same; another output may be cut by it."""
    spare, lengths = given(), tensor(OutputLayout, "l", (1,), dtype="INT64")
    spare = replace(spare, name="spare")
    first, second = map(place, CHAIN.steps)
    layout = replace(first.layout, outputs=(given(), spare, lengths))
    plain = replace(first, layout=layout)
    assert step_retentions(CHAIN, [plain, second])[0].unrequested == {"spare", "l"}
    cut = replace(layout, outputs=(given(lengths=("l", "")), spare, lengths))
    assert step_retentions(CHAIN, [replace(first, layout=cut), second])[0].unrequested == {"spare"}


def test_one_step_of_each_memory_frees_the_tensors_there():
    """The first one that leaves any, since the next batch begins with it."""
    dag = dag_of(("X", "A"), ("A", "B"), ("B", "C"), ("C", "D"), ("D", "Z"))
    there = replace(HERE, name="acl of b")
    memories = [HERE, HERE, HERE, there, there]
    places = [place(step, memory=memory) for step, memory in zip(dag.steps, memories, strict=True)]
    kept = step_retentions(dag, places)
    assert [step.outputs for step in kept] == [{"y": False}, {"y": False}, {}, {"y": False}, {}]
    assert [step.frees for step in kept] == [True, False, False, True, False]
