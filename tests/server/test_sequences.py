"""Sequences on the real server, under both of its schedulers, against plain Python."""

import io
import json
import time
import urllib.request
from collections import Counter

import ml_dtypes
import numpy as np
import onnxruntime
import psutil
import pytest
import tritonclient.grpc as grpcclient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from builders.graphs import (
    accumulator,
    controlled,
    graph,
    history,
    history_of_means,
    parameters,
    recurrent,
    write_model,
)
from builders.null_models import comes_true
from builders.sequences import Steps, tensor
from builders.servers import server_options
from builders.standstill import standing_still
from ge_tools.tritonserver import TritonServer

VALUE = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
STATE = 'state [ { input_name: "h" output_name: "h_next" data_type: TYPE_FP32 dims: [ 1 ] %s } ]'
IDLE_S = 2.0
# So many steps of clients that vanish take so long that most of them still wait then.
NUM_LOST, STEP_MS = 150, 50
LONG = "max_sequence_idle_microseconds: 60000000"
CONTROLS = """
control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START %s_false_true: [ 0, 1 ] } ] },
  { name: "END" control [ { kind: CONTROL_SEQUENCE_END %s_false_true: [ 0, 1 ] } ] },
  { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY %s_false_true: [ 0, 1 ] } ] },
  { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } ] }
]
"""
# Of START, END, READY and the id, each of which comes in several types.
TYPES = {"a": ("fp32", "int32", "bool", "UINT64"), "b": ("bool", "fp32", "int32", "INT32")}


# Triton's names for what a TorchScript file takes and gives: each ends in its place.
SCRIPTED = f"""
max_batch_size: 2
input [ {{ name: "X__0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1 ] }} ]
sequence_batching {{
  {LONG}
  control_input [
    {{
      name: "START__2"
      control [ {{ kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }} ]
    }}
  ]
  state [ {{ input_name: "H__1" output_name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 1 ] }} ]
}}
"""

STACKED = "data_type: TYPE_FP32 dims: [ 2, 4 ]"


def batching(scheduler, more=LONG, state=""):
    return f"sequence_batching {{ {scheduler} {more} {STATE % state} }}"


def from_file(name):
    return f'initial_state {{ name: "i" data_type: TYPE_FP32 dims: [ 1 ] data_file: "{name}" }}'


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A repository with a model for each ability."""
    models = tmp_path_factory.mktemp("models")
    two = "max_batch_size: 2 instance_group [ { kind: KIND_CPU count: 2 } ]"
    oldest = "oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 1000 }"
    write_model(models, "direct", f"{two} {VALUE} {batching('direct {}')}", accumulator())
    write_model(models, "oldest", f"max_batch_size: 4 {VALUE} {batching(oldest)}", accumulator())
    many = "oldest { max_candidate_sequences: 64 max_queue_delay_microseconds: 1000 }"
    write_model(models, "many", f"max_batch_size: 16 {VALUE} {batching(many)}", accumulator())
    slots = "max_batch_size: 4 " + parameters(**{"buckets.rows": "1,4"})
    write_model(models, "slots", f"{slots} {VALUE} {batching('direct {}')}", accumulator())
    late = "max_queue_delay_microseconds: 200000"
    alone = f"max_batch_size: 2 {VALUE}" + parameters(device="null", warmup="off")
    lazy = batching(f"direct {{ {late} minimum_slot_utilization: 1 }}")
    write_model(models, "vanishing_direct", f"{alone} {lazy}", summing(STEP_MS), "model.null")
    lazy = batching(f"oldest {{ {late} max_candidate_sequences: 2 preferred_batch_size: 2 }}")
    write_model(models, "vanishing_oldest", f"{alone} {lazy}", summing(STEP_MS), "model.null")
    both = parameters(device="null", device_ids="0,1")
    groups = 'instance_group [ { name: "left" kind: KIND_CPU }, { name: "right" kind: KIND_CPU } ]'
    for name, instances in (("spread", two), ("spread_by_groups", f"max_batch_size: 2 {groups}")):
        text = f"{instances} {VALUE} {batching('direct {}')} {both}"
        write_model(models, name, text, summing(), "model.null")
    idle = f"max_sequence_idle_microseconds: {int(IDLE_S * 1e6)}"
    write_model(
        models, "idle", f"max_batch_size: 1 {VALUE} {batching('direct {}', idle)}", accumulator()
    )
    write_model(
        models, "alone", f"max_batch_size: 1 {VALUE} {batching('direct {}')}", accumulator()
    )
    starting = batching("direct {}", state=from_file("ten"))
    starting += parameters(executor="process")
    write_model(models, "from_file", f"max_batch_size: 2 {VALUE} {starting}", accumulator())
    (models / "from_file" / "initial_state").mkdir()
    (models / "from_file" / "initial_state" / "ten").write_bytes(np.float32(10).tobytes())
    whole = VALUE.replace("FP32", "INT32")
    whole = f"max_batch_size: 2 {whole} {batching('direct {}').replace('FP32', 'INT32')}"
    write_model(models, "whole", whole, accumulator(TensorProto.INT32))
    half = f"max_batch_size: 2 {VALUE} {batching('direct {}')}".replace("FP32", "BF16")
    write_model(models, "half", half, delaying(TensorProto.BFLOAT16))
    ragged = VALUE.replace("dims: [ 1 ] }", "dims: [ -1 ] allow_ragged_batch: true }", 1)
    ragged = ragged.replace("dims: [ 1 ] }", "dims: [ 1 ] reshape { shape: [ ] } }")
    past = 'input_name: "past" output_name: "present" data_type: TYPE_FP32 dims: [ -1 ]'
    past += ' initial_state { name: "none" data_type: TYPE_FP32 dims: [ 0 ] zero_data: true }'
    growing = f"sequence_batching {{ {many} {LONG} state [ {{ {past} }} ] }}"
    write_model(models, "history", f"max_batch_size: 16 {ragged} {growing}", history())
    write_model(models, "means", f"max_batch_size: 16 {ragged} {growing}", history_of_means())
    stacked = f'state [ {{ input_name: "state" output_name: "state_next" {STACKED} }} ]'
    audio = f"max_batch_size: 16 {VALUE.replace('1', '-1', 1)}" + parameters(generate__rate="2")
    lstm = f"{audio} sequence_batching {{ {many} {LONG} {stacked} }}"
    write_model(models, "recurrent", lstm, recurrent())
    shown = VALUE.replace("dims: [ 1 ] }", "dims: [ 5 ] }").replace("[ 5 ]", "[ 1 ]", 1)
    for name, types in TYPES.items():
        kinds = [
            TensorProto.DataType.Value(kind.upper().replace("FP32", "FLOAT")) for kind in types
        ]
        flags = f"sequence_batching {{ direct {{}} {LONG} {CONTROLS % types} }}"
        model = controlled(*kinds)
        write_model(models, f"controlled_{name}", f"max_batch_size: 2 {shown} {flags}", model)
    flags = flags.replace("TYPE_INT32", "TYPE_STRING")
    write_model(models, "bad_id", f"max_batch_size: 2 {shown} {flags}", model)
    flags = batching("direct {}", f"{LONG} {CONTROLS % TYPES['a']}")
    write_model(models, "uncontrolled", f"max_batch_size: 2 {VALUE} {flags}", accumulator())
    bad = batching("direct {}").replace('"h"', '"g"')
    write_model(models, "bad_state", f"max_batch_size: 2 {VALUE} {bad}", accumulator())
    bad = batching("direct {}", f"{LONG} iterative_sequence: true")
    write_model(models, "iterative", f"max_batch_size: 2 {VALUE} {bad}", accumulator())
    dying = f"max_batch_size: 2 {VALUE} {batching('direct {}')} "
    write_model(models, "scripted", SCRIPTED, scripted(), "model.pt")
    write_model(models, "dying", dying + parameters(threads="1", executor="process"), accumulator())
    return models


def delaying(kind):
    """Take x [batch, 1] and the state h -> y = h, and x is the next state."""
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in (("h", "y"), ("x", "h_next"))]
    given, told = (
        [(name, kind, ["batch", 1]) for name in names] for names in ("xh", ("y", "h_next"))
    )
    return graph(nodes, given, told)


def scripted():
    """Return a TorchScript file, which does not say what it takes: h_next = h + x, and y tells START."""
    torch = pytest.importorskip("torch")

    class Accumulator(torch.nn.Module):
        def forward(self, x, h, start):
            total = h + x
            return total + 100 * start, total

    file = io.BytesIO()
    torch.jit.save(torch.jit.script(Accumulator()), file)
    return file.getvalue()


def summing(step_ms=0):
    """Return a model for the null device: h_next = h + x, and y is the same; a step may take long."""
    dims = ["batch", "one"]
    total = {"dtype": "FP32", "dims": dims, "compute": "accumulate", "of": "x", "from": "h"}
    return json.dumps(
        {
            "inputs": [{"name": name, "dtype": "FP32", "dims": dims} for name in "xh"],
            "outputs": [{"name": name, **total} for name in ("y", "h_next")],
            "cost_ms": {"*": step_ms},
        }
    ).encode()


@pytest.fixture(scope="module")
def server(models, installation, tmp_path_factory):
    options = server_options(
        models,
        log_file=tmp_path_factory.mktemp("log") / "server.log",
        arguments=("--exit-on-error=false", "--strict-readiness=false"),
        exit_timeout_s=5,  # this server may wait in vain after sequences were cancelled
    )
    with TritonServer(installation, options) as running:
        yield running
        settled(running)


def step(client, model, sequence, values, *, start=False, end=False, kind="FP32"):
    """Take one step and wait for it."""
    answer = client.infer(
        model,
        tensor(values, kind),
        sequence_id=sequence,
        sequence_start=start,
        sequence_end=end,
        client_timeout=60,
    )
    found = answer.as_numpy("y")[0].tolist()
    return found[0] if len(found) == 1 else found


@pytest.mark.parametrize("model", ["direct", "oldest", "many"])
@pytest.mark.parametrize("names", [(11, 12, 13), ("a", "b", "ü" * 40)])
def test_every_sequence_has_its_own_state(client, model, names):
    """Interleaved sequences with number and text ids go on from where each was."""
    first, second, third = names
    assert step(client, model, first, 1, start=True) == 1
    assert step(client, model, second, 10, start=True) == 10
    assert step(client, model, first, 2) == 3
    assert step(client, model, third, 100, start=True, end=True) == 100
    assert step(client, model, second, 20, end=True) == 30
    assert step(client, model, first, 3, end=True) == 6
    assert step(client, model, third, 5, start=True, end=True) == 5


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_start_in_the_middle_begins_anew(client, model):
    """The state of before is gone."""
    step(client, model, 21, 5, start=True)
    assert step(client, model, 21, 1, start=True) == 1
    assert step(client, model, 21, 1, end=True) == 2


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_who_does_not_begin_is_refused(client, model):
    """No START, or END twice: INVALID_ARGUMENT from the host, and nobody else is disturbed."""
    step(client, model, 31, 5, start=True)
    with pytest.raises(InferenceServerException, match="START") as caught:
        step(client, model, 32, 5)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    step(client, model, 31, 5, end=True)
    with pytest.raises(InferenceServerException, match="START"):
        step(client, model, 31, 5, end=True)


def test_a_state_begins_with_the_value_of_its_file(client):
    """Every time the sequence starts."""
    for _ in range(2):
        assert step(client, "from_file", 1, 1, start=True) == 11
        assert step(client, "from_file", 1, 1, end=True) == 12


def test_whole_numbers_are_kept_as_they_are(client):
    """A state has the type that is declared."""
    big = 2**30
    assert step(client, "whole", 1, big, start=True, kind="INT32") == big
    assert step(client, "whole", 1, 7, end=True, kind="INT32") == big + 7


def test_a_state_of_bf16_is_kept(client):
    """The host adds it to each request, in a type that numpy does not have."""
    for value, before, flags in ((1.5, 0.0, {"sequence_start": True}), (2.5, 1.5, {})):
        item = grpcclient.InferInput("x", [1, 1], "BF16")
        item.set_data_from_numpy(np.array([[value]], ml_dtypes.bfloat16))
        answer = client.infer("half", [item], sequence_id=1, client_timeout=60, **flags)
        assert answer.as_numpy("y").astype(np.float32).tolist() == [[before]]


@pytest.mark.parametrize("types", TYPES)
def test_controls_reach_graphs_that_have_them(client, types):
    """With the declared values, in several types."""
    model = f"controlled_{types}"
    assert step(client, model, 3, 7, start=True) == [7, 1, 0, 1, 3]
    assert step(client, model, 3, 7) == [7, 0, 0, 1, 3]
    assert step(client, model, 3, 7, end=True) == [7, 0, 1, 1, 3]


def test_a_file_that_does_not_say_what_it_takes_has_controls_and_states(client):
    """What is declared counts, in the order that Triton's names give."""
    for value, flags, total in ((5, {"sequence_start": True}, 105), (6, {}, 11), (7, {}, 18)):
        item = tensor(value, name="X__0")
        answer = client.infer("scripted", item, sequence_id=3, client_timeout=60, **flags)
        assert answer.as_numpy("OUTPUT__0").tolist() == [[total]]


def test_controls_are_left_out_of_graphs_that_do_not_have_them(client):
    """They may be declared all the same."""
    assert step(client, "uncontrolled", 3, 7, start=True) == 7
    assert step(client, "uncontrolled", 3, 7, end=True) == 14


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("bad_id", "leave the control out: string ids work without it"),
        ("bad_state", "declares the state 'g', which the graph does not have"),
        ("iterative", "a graph runs once per request; remove it"),
    ],
)
def test_what_cannot_be_served_is_refused_at_load(client, model, message):
    """The reason is the server's own list of models."""
    index = client.get_model_repository_index(as_json=True)["models"]
    assert message in next(item["reason"] for item in index if item["name"] == model)


@pytest.mark.parametrize(("model", "told"), [("history", np.sum), ("means", np.mean)])
def test_states_of_growing_size_go_with_ragged_inputs(server, model, told):
    """Each sequence's sum or mean over all that came: no zeros of longer neighbours are among it."""
    generator = np.random.default_rng(3)
    came = {sequence: [] for sequence in range(1, 13)}
    with Steps(server.grpc, model) as steps:
        for number in range(6):
            for sequence, values in came.items():
                step = generator.integers(1, 9, int(generator.integers(1, 20)))
                values.extend(map(float, step))
                steps.send(sequence, step, start=number == 0, end=number == 5)
            answers = steps.take(len(came))
            expected = {sequence: [told(values)] for sequence, values in came.items()}
            assert answers == {name: pytest.approx(value) for name, value in expected.items()}


def test_a_state_may_have_the_batch_behind_another_dimension(server):
    """As recurrent networks have it; what each sequence hears is what the file alone makes of it."""
    generator = np.random.default_rng(6)
    session = onnxruntime.InferenceSession(recurrent())
    states = {sequence: np.zeros((2, 1, 4), np.float32) for sequence in range(1, 13)}
    with Steps(server.grpc, "recurrent") as steps:
        for number in range(5):
            expected = {}
            for sequence, state in states.items():
                heard = generator.normal(size=3).astype(np.float32)
                given = {"x": heard[None], "state": state, "rate": np.array(2)}
                told, states[sequence] = session.run(None, given)
                expected[sequence] = [pytest.approx(told[0, 0], abs=1e-6)]
                steps.send(sequence, heard, start=number == 0, end=number == 4)
            assert steps.take(len(states)) == expected


def test_the_direct_example_of_the_documentation(server):
    """Two instances of two slots: 0 to 3 run at once, 4 and 5 wait for the slots of 3 and 1."""
    first, waiting = [400, 401, 402, 403], {404, 405}
    with Steps(server.grpc, "direct") as steps:
        for name in first:
            steps.send(name, 1, start=True)
        assert steps.take(4) == {name: [1] for name in first}
        for name in waiting:
            steps.send(name, 1, start=True)
        for name in first:
            steps.send(name, 1)
        assert steps.take(4) == {name: [2] for name in first}
        for ending in (403, 401):
            assert steps.answers.empty()
            steps.send(ending, 1, end=True)
            answers = steps.take(2)
            assert answers.pop(ending) == [3]
            ((begun, answer),) = answers.items()
            assert answer == [1]
            waiting.remove(begun)
        for name in (400, 402, 404, 405):
            steps.send(name, 1, end=True)
        assert steps.take(4) == {400: [3], 402: [3], 404: [2], 405: [2]}


def test_the_oldest_example_of_the_documentation(server):
    """Four candidates at once; the steps of a sequence run in order, never two in one batch."""
    names, count = [501, 502, 503, 504, 505, 506], 8
    with Steps(server.grpc, "oldest") as steps:
        for number in range(count):
            for name in names:
                steps.send(name, number + 1, start=number == 0, end=number == count - 1)
        expected = [float(n * (n + 1) // 2) for n in range(1, count + 1)]
        assert steps.take(count * len(names)) == dict.fromkeys(names, expected)


def test_many_sequences_share_batches(client, server):
    """64 live sequences: results are each one's own, and executions are fewer than requests."""
    before = executions(client, "many")
    names = range(600, 664)
    with Steps(server.grpc, "many") as steps:
        for number in range(5):
            with standing_still(server):
                for name in names:
                    steps.send(name, name, start=number == 0, end=number == 4)
            assert steps.take(64) == {name: [float(name * (number + 1))] for name in names}
    assert comes_true(lambda: executions(client, "many")[0] - before[0] == 320)  # after answers
    assert executions(client, "many")[1] - before[1] < 320


def executions(client, model):
    """Return how many requests and how many batches a model has had."""
    (stats,) = client.get_inference_statistics(model).model_stats
    return stats.inference_count, stats.execution_count


def test_an_idle_sequence_makes_room(client):
    """After the host's idle time the only slot is another's, and the old one must begin again."""
    assert step(client, "idle", 1, 5, start=True) == 5
    assert step(client, "idle", 2, 7, start=True, end=True) == 7  # waits until 1 is given up
    with pytest.raises(InferenceServerException, match="START"):
        step(client, "idle", 1, 1)


def test_a_first_step_that_finds_no_place_in_time_begins_nothing(client):
    """The host refuses it, and the next one, which does not begin the sequence either."""
    assert step(client, "alone", 1, 5, start=True) == 5
    with pytest.raises(InferenceServerException, match="timeout of the") as caught:
        client.infer("alone", tensor(7), sequence_id=2, sequence_start=True, timeout=100_000)
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    with pytest.raises(InferenceServerException, match="START"):
        step(client, "alone", 2, 1)
    assert step(client, "alone", 1, 1, end=True) == 6


def test_places_without_a_step_are_not_computed(client, server):
    """All four slots are taken; a step of the last one alone runs in the bucket of one row."""
    names = (801, 802, 803, 804)
    with Steps(server.grpc, "slots") as steps:
        for name in names:
            steps.send(name, name, start=True)
            steps.take(1)
        before = settled(server, lambda found: found["slots", "rows"] == 4)
        for number in range(1, 6):
            assert step(client, "slots", names[-1], 1) == names[-1] + number
        after = settled(server, lambda found: found["slots", "rows"] == 9)
        assert after["slots", "1"] - before["slots", "1"] == 5
        assert after["slots", "4"] == before["slots", "4"]
        for name in names:
            steps.send(name, 0, end=True)
        steps.take(4)


@pytest.mark.parametrize("model", ["vanishing_direct", "vanishing_oldest"])
def test_who_vanishes_makes_room_and_nobody_else_does(client, server, model):
    """One of two places stays with who lives in it; in the other one client after client is lost.

    Many steps are still waiting when they are cancelled: the host hears of a client that is lost by
    its waiting requests only. Where all of them have run, its place is kept for the idle time.
    """
    assert step(client, model, 900, 1, start=True) == 1
    with Steps(server.grpc, model) as steps:
        for round_ in range(1, 5):
            lost = 900 + round_
            with standing_still(server):
                for number in range(NUM_LOST):
                    steps.send(lost, lost, start=number == 0)
            assert steps.take_of(lost) == lost
            assert comes_true(lambda: counted(server)[model, "pending"] >= NUM_LOST / 2, 60)
            steps.vanish(lost)
            if round_ % 2 == 0:
                assert step(client, model, 900, 1) == 1 + round_ // 2
    assert step(client, model, 910, 7, start=True, end=True) == 7
    assert step(client, model, 900, 1, end=True) == 4
    found = settled(server, lambda found: found[model, "ended"] == 2)
    assert found[model, "begun"] == 6
    assert found[model, "live"] <= 3


@pytest.mark.parametrize("model", ["spread", "spread_by_groups"])
def test_a_sequence_stays_on_its_device(client, server, model):
    """Two instances take a device each, of one group or of two; four sequences share them."""
    names = (951, 952, 953, 954)
    for number in range(3):
        for name in names:
            total = step(client, model, name, name, start=number == 0, end=number == 2)
            assert total == name * (number + 1)
    found = settled(server, lambda found: found[model, "rows"] == 12)
    assert found[model, "null"] == found[model, "null:1"] == 6


def settled(server, until=lambda found: True):
    """Return what is counted, once it adds up: who began has ended, made room, or lives."""
    deadline = time.monotonic() + 60
    while True:
        found = counted(server)
        gone = ("ended", "expired", "displaced", "lost")
        models = {model for model, _ in found}
        if until(found) and all(
            found[model, "begun"] - sum(found[model, event] for event in gone)
            == found[model, "live"]
            for model in models
        ):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def counted(server):
    """Return by (model, what) what is counted: events, live ones, rows, by bucket, by device."""
    with urllib.request.urlopen(server.metrics) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    names = {
        "ge_sequences_total": "event",
        "ge_sequences_live": "live",
        "ge_rows_total": "rows",
        "nv_inference_pending_request_count": "pending",
        "ge_sub_batches_total": "bucket",
    }
    found = Counter()
    for sample in (sample for family in families for sample in family.samples):
        if sample.name in names:
            what = sample.labels.get(names[sample.name], names[sample.name])
            found[sample.labels["model"], what] += sample.value
        if sample.name == "ge_rows_total":
            found[sample.labels["model"], sample.labels["device"]] += sample.value
    return found


EVENTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 9), st.booleans(), st.booleans()),
    min_size=1,
    max_size=40,
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=EVENTS)
@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_random_interleavings_agree_with_an_oracle(server, model, events):
    """Sequences begin, go on, begin anew, end and are taken up after their end, in any order.

    An id is begun again once its steps are answered: before, the host may run them in any order.
    """
    totals, expected, found, waiting = {}, {}, {}, 0
    with Steps(server.grpc, model) as steps:
        for who, value, start, end in events:
            sequence = 700 + who
            begins = start or sequence not in totals
            if begins and sequence not in totals and len(totals) == 4:
                continue  # it would wait for a slot that only a later event frees
            if begins and sequence in expected:
                merge(found, steps.take(waiting))
                waiting = 0
            totals[sequence] = float(value) + (0.0 if begins else totals[sequence])
            expected.setdefault(sequence, []).append(totals[sequence])
            steps.send(sequence, value, start=begins, end=end)
            waiting += 1
            if end:
                del totals[sequence]
        for sequence, total in totals.items():
            expected[sequence].append(total)
            steps.send(sequence, 0, end=True)
        merge(found, steps.take(waiting + len(totals)))
    assert found == expected


def merge(found, answers):
    for sequence, values in answers.items():
        found.setdefault(sequence, []).extend(values)


def kill_executor(server):
    """Kill a server's executor; whoever started it may have ended, so it need not be a child."""
    marks = {f"--owner={server.pid}", "--device=cpu"}
    (executor,) = [
        p for p in psutil.process_iter(["cmdline"]) if marks <= set(p.info["cmdline"] or ())
    ]
    executor.kill()
    executor.wait(timeout=30)


def test_a_killed_executor_costs_its_sequences_one_clear_error(client, server):
    """State is gone with it; what begins anew works at once."""
    assert step(client, "dying", 1, 5, start=True) == 5
    assert step(client, "dying", 2, 5, start=True) == 5
    kill_executor(server)
    with pytest.raises(InferenceServerException, match="begin the sequence again"):
        step(client, "dying", 1, 1)
    with pytest.raises(InferenceServerException, match="begin the sequence again"):
        step(client, "dying", 2, 1)
    assert step(client, "dying", 1, 3, start=True) == 3
    assert step(client, "dying", 1, 1, end=True) == 4
    assert step(client, "dying", 2, 2, start=True, end=True) == 2


def test_an_executor_that_dies_while_no_sequence_lives_costs_none(client, server):
    """Whichever instance has the next one notices before it begins."""
    for sequence in (1, 2):
        assert step(client, "dying", sequence, 7, start=True, end=True) == 7
    kill_executor(server)
    for sequence in (11, 12):
        assert step(client, "dying", sequence, 5, start=True) == 5
    for sequence in (11, 12):
        assert step(client, "dying", sequence, 1, end=True) == 6


def test_sequences_begin_with_the_value_that_was_loaded(client, server, models):
    """Its file written over or gone, and an executor killed: until the model is loaded again."""
    file = models / "from_file" / "initial_state" / "ten"
    for replacement in (np.float32(99).tobytes(), b"", None):
        file.unlink() if replacement is None else file.write_bytes(replacement)
        assert step(client, "from_file", 1, 1, start=True, end=True) == 11
        kill_executor(server)
        assert step(client, "from_file", 1, 1, start=True, end=True) == 11
