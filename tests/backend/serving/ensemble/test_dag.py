"""Steps in order, tensors with one writer, ends that agree."""

import itertools

import pytest

from ge_backend.errors import ConfigError
from ge_backend.serving.ensemble.dag import Port, check_ports, read_dag
from ge_backend.tensors import DATA_TYPES


def step(model, inputs, outputs):
    return {"model_name": model, "model_version": -1, "input_map": inputs, "output_map": outputs}


TOKENIZE = step("tokenizer", {"text": "TEXT"}, {"ids": "ids", "mask": "mask"})
ENCODE = step("encoder", {"ids": "ids", "mask": "mask"}, {"y": "hidden"})
POOL = step("pooling", {"x": "hidden", "mask": "mask"}, {"e": "EMBEDDING"})


def ensemble(*steps, inputs=("TEXT",), outputs=("EMBEDDING",)):
    return {
        "name": "text",
        "input": [{"name": name} for name in inputs],
        "output": [{"name": name} for name in outputs],
        "ensemble_scheduling": {"step": list(steps)},
    }


@pytest.mark.parametrize("steps", itertools.permutations([TOKENIZE, ENCODE, POOL]))
def test_steps_come_after_those_they_need(steps):
    """Whatever their order in the file: fan-out and fan-in."""
    dag = read_dag(ensemble(*steps))
    assert [found.model for found in dag.steps] == ["tokenizer", "encoder", "pooling"]
    assert (dag.inputs, dag.outputs) == (("TEXT",), ("EMBEDDING",))


@pytest.mark.parametrize(
    ("wanted", "needed"),
    [
        ({"EMBEDDING"}, ["tokenizer", "encoder", "pooling"]),
        ({"SCORE"}, ["tokenizer", "ranker"]),
        ({"hidden"}, ["tokenizer", "encoder"]),
        ({"hidden", "SCORE"}, ["tokenizer", "encoder", "ranker"]),
        ({"TEXT"}, []),
    ],
)
def test_only_steps_that_lead_to_what_is_wanted_are_needed(wanted, needed):
    """Whatever else the ensemble could give; a tensor of the client's needs none."""
    rank = step("ranker", {"ids": "ids"}, {"s": "SCORE"})
    given = ["EMBEDDING", "SCORE", "hidden", "TEXT"]
    dag = read_dag(ensemble(TOKENIZE, ENCODE, POOL, rank, outputs=given))
    assert [dag.steps[number].model for number in sorted(dag.needed(wanted))] == needed


def test_a_step_that_leads_to_no_output_runs_for_everybody():
    """As in the host, which leaves out only what leads to outputs that are not asked for."""
    idle = step("idle", {"x": "hidden"}, {"y": "nobody's"})
    rank = step("ranker", {"ids": "ids"}, {"s": "SCORE"})
    dag = read_dag(ensemble(TOKENIZE, ENCODE, POOL, rank, idle, outputs=["EMBEDDING", "SCORE"]))
    needed = [dag.steps[place].model for place in sorted(dag.needed({"SCORE"}))]
    assert needed == ["tokenizer", "encoder", "ranker", "idle"]


def test_an_output_that_nobody_takes_is_allowed():
    """As the host allows it."""
    head = step("head", {"x": "hidden"}, {"e": "EMBEDDING", "spare": "spare"})
    assert len(read_dag(ensemble(TOKENIZE, ENCODE, head)).steps) == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "m"}, "'m' is no ensemble"),
        (ensemble({"model_version": -1}), "a step of ensemble 'text' has no model_name"),
        (ensemble(POOL) | {"input": [{}]}, "an input of ensemble 'text' has no name"),
        (ensemble(POOL) | {"output": [{}]}, "an output of ensemble 'text' has no name"),
        (
            ensemble(TOKENIZE, POOL),
            "input 'x' of step 'pooling' takes tensor 'hidden', which nobody",
        ),
        (ensemble(TOKENIZE, ENCODE), "the ensemble's output takes tensor 'EMBEDDING'"),
        (
            ensemble(TOKENIZE, ENCODE, POOL, step("e2", {"ids": "ids"}, {"y": "hidden"})),
            "tensor 'hidden' is written by output 'y' of step 'encoder' and by output 'y' of step",
        ),
        (
            ensemble(TOKENIZE, step("e", {"ids": "ids"}, {"y": "TEXT"})),
            "'TEXT' is written by the client and by",
        ),
        (
            ensemble(
                step("a", {"x": "b_out", "t": "TEXT"}, {"y": "a_out"}),
                step("b", {"x": "a_out"}, {"y": "b_out", "z": "EMBEDDING"}),
            ),
            "the steps 'a', 'b' wait for each other's outputs",
        ),
    ],
)
def test_what_cannot_run_is_refused(config, message):
    """Both ends of what is wrong are named."""
    with pytest.raises(ConfigError, match=message):
        read_dag(config)


@pytest.mark.parametrize("given", [{}, {"max_inflight_requests": 3}], ids=["none", "three"])
def test_the_requests_at_a_step_are_bounded_where_the_ensemble_says_so(given):
    """Hosts from 2.63 on know the field; it comes by this name in their JSON and by protobuf's."""
    config = ensemble(TOKENIZE, ENCODE, POOL)
    config["ensemble_scheduling"] |= given
    assert read_dag(config).max_inflight == given.get("max_inflight_requests", 0)


def port(dtype="FP32", dims=(-1, 4), owner="step 'encoder'", *, batched=False):
    return Port(owner=owner, name="y", dtype=DATA_TYPES[dtype], dims=dims, batched=batched)


@pytest.mark.parametrize("dims", [(-1, 4), (7, 4), (-1, -1)])
def test_free_dims_fit_any_size(dims):
    """-1 on either side."""
    check_ports([(port(), port(dims=dims))])


@pytest.mark.parametrize(("dtype", "dims"), [("INT64", (-1, 4)), ("FP32", (-1, 5)), ("FP32", (4,))])
def test_ends_that_differ_are_refused(dtype, dims):
    """The message names both, with types and dims."""
    with pytest.raises(ConfigError, match=r"'y' of step 'encoder' \(FP32 \[-1, 4\]\) does not fit"):
        check_ports([(port(), port(dtype, dims, owner="step 'pooling'"))])


@pytest.mark.parametrize("dims", [(4,), (-1, 4)])
def test_a_batch_dimension_may_be_one_of_the_others_dims(dims):
    """Or one that is added or taken away: as the host accepts it, whichever side has it."""
    check_ports([(port(), port(dims=dims, batched=True)), (port(dims=dims, batched=True), port())])


def test_batched_ends_that_differ_are_shown_with_their_batch():
    """Else [2] would not fit [2, 2] for no reason that can be seen."""
    with pytest.raises(
        ConfigError, match=r"\(FP32 \[batch, 2\]\) does not fit .*\(FP32 \[3, 4\]\)"
    ):
        check_ports([(port(dims=(2,), batched=True), port(dims=(3, 4)))])
