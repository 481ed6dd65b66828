"""Steps of sequences in a batch: what is refused, and what breaks, leaves no state behind."""

import json
import re
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from builders.bench import Bench
from builders.host_config import instance_of
from ge_backend.errors import OutOfMemory
from ge_backend.executor.client.in_flight import InFlight
from ge_backend.executor.process.inline import InlineExecutors
from ge_backend.metrics import Recorder
from ge_backend.model.config.sequence_batching import SequenceBatching, State
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.sequence.sequencer import Sequencer
from ge_backend.tensors import DATA_TYPES

STATE = State(input="h", output="n", dtype=DATA_TYPES["FP32"], dims=(1,), initial_dims=(1,))
BATCHING = SequenceBatching(strategy="oldest", capacity=2, idle_s=60, controls=(), states=(STATE,))
VALUE = {"name": "x", "dtype": DATA_TYPES["INT64"], "dims": (1,), "axes": (-1,), "names": ("",)}
LAYOUT = Layout(
    batched=True,
    axes=(),
    limits={},
    inputs=(InputLayout(fill=0.0, made="", **VALUE),),
    outputs=(OutputLayout(**VALUE),),
)
CONFIG = SimpleNamespace(sequence=BATCHING, queue=None, max_batch_size=2)
START, END = 1, 2


@dataclass
class Pipeline:
    """Echoes, notes where steps run, and breaks when it is told to."""

    layout: Layout = LAYOUT
    recorder: Recorder = field(default_factory=Recorder)
    free_at_ns: float = 0.0
    steps: list = field(default_factory=list)
    broken: bool = False
    stacks: bool = False
    look_for_losses: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None

    def run(self, requests):
        from ge_backend.serving.batching.progress import Reply

        for position, request in enumerate(requests):
            self.steps.append((request.slot, request.starting))
            if self.broken:
                raise RuntimeError("unforeseen")
            outputs = {"x": request.tensors["x"]}
            yield Reply(request=position, outputs=outputs, states={"h": (1,)})


@pytest.fixture
def pipeline():
    return Pipeline()


@pytest.fixture
def sequencer():
    return Sequencer(BATCHING)


@pytest.fixture
def send(pb_utils, pipeline, sequencer):
    """A function that sends one step of one sequence; returns the error's text, or None."""
    from ge_backend.host.backend import Backend
    from ge_backend.host.steps import Steps

    steps = Steps(sequencer, pipeline.recorder)
    backend = Backend(CONFIG, pipeline, [SimpleNamespace(close=lambda: None)], steps)

    def send(value=1, flags=0):
        array = np.array([[value]])
        request = pb_utils.InferenceRequest([pb_utils.Tensor("x", array)], ["x"])
        request.correlation_id, request.flags = lambda: 7, lambda: flags
        (response,) = backend.execute([request])
        return response.error().message() if response.has_error() else None

    return send


def test_a_refused_start_begins_the_sequence_all_the_same(send, pipeline):
    """The host has begun it; the next step does not go on from the state of before."""
    assert send(flags=START) is None
    assert send() is None
    assert "expected INT64" in send(1.5, flags=START)
    assert send() is None
    assert [starting for _, starting in pipeline.steps] == [True, False, True]


def test_a_refused_end_ends_the_sequence_all_the_same(send, pipeline):
    """So does the host."""
    assert send(flags=START) is None
    assert "expected INT64" in send(1.5, flags=END)
    assert "not known here" in send()


def test_a_sequence_ends_with_an_answer_that_has_no_room(send, monkeypatch):
    """Its state has moved on, so the step cannot be sent again."""
    from ge_backend.host import backend

    def full(*_):
        raise OutOfMemory("no room")

    assert send(flags=START) is None
    with monkeypatch.context() as patch:
        patch.setattr(backend, "write_response", full)
        assert "no room (this came up when the step had changed the state" in send()
    assert "is not known here" in send()


def test_a_refused_step_in_the_middle_changes_nothing(send, pipeline):
    """The sequence goes on."""
    assert send(flags=START) is None
    assert "expected INT64" in send(1.5)
    assert send() is None
    assert pipeline.steps == [(0, True), (0, False)]


def test_a_refused_step_leaves_a_loss_to_be_told(send, sequencer):
    """Once, to the first step that could have been run: what the client did wrong is another."""
    assert send(flags=START) is None
    sequencer.lose_all()
    assert "expected INT64" in send(1.5)
    assert "state of sequence 7 was lost" in send()
    assert "not known here" in send()


def test_losses_are_looked_for_before_a_step_is_admitted(send, pipeline):
    """What begins with it is not lost with what went before."""
    looked = []
    pipeline.look_for_losses = lambda: looked.append(len(pipeline.steps))
    assert send(flags=START) is None
    assert send() is None
    assert looked == [0, 1]


def test_after_an_unforeseen_failure_the_sequence_begins_again(send, pipeline):
    """Nobody knows whether its state has moved on."""
    assert send(flags=START) is None
    pipeline.broken = True
    assert "unforeseen" in send()
    pipeline.broken = False
    assert "not known here" in send()
    assert send(flags=START) is None
    assert pipeline.steps[-1] == (0, True)


def undecodable():
    return b"bad\xff".decode()


def breaks():
    raise ZeroDivisionError("oops")


@pytest.mark.parametrize(
    ("member", "raises", "code", "message"),
    [
        ("correlation_id", undecodable, "INVALID_ARG", "sequence_id is not UTF-8"),
        ("inputs", breaks, "INTERNAL", r"ZeroDivisionError: oops \(see the server's log\)"),
    ],
)
def test_a_request_that_cannot_be_read_fails_alone(
    pb_utils, pipeline, member, raises, code, message
):
    """The steps beside it go on with the states that they have."""
    from ge_backend.host.backend import Backend
    from ge_backend.host.steps import Steps

    backend = Backend(CONFIG, pipeline, [], Steps(Sequencer(BATCHING), pipeline.recorder))

    def request(number, flags):
        tensors = [pb_utils.Tensor("x", np.array([[number]]))]
        return pb_utils.InferenceRequest(tensors, ["x"], correlation_id=number, flags=flags)

    good, bad = request(7, START), request(8, START)
    setattr(bad, member, raises)
    first, refused = backend.execute([good, bad])
    assert not first.has_error()
    assert refused.error().code() == code
    assert re.search(message, refused.error().message())
    backend.execute([request(7, 0)])
    assert pipeline.steps == [(0, True), (0, False)]
    failures = pipeline.recorder.drain()["ge_request_failures_total", (("status", code),)]
    assert failures == 1


SUMS = {"dtype": "FP32", "dims": ["batch", 1], "compute": "accumulate", "of": "x", "from": "h"}
GRAPH = {
    "inputs": [{"name": name, "dtype": "FP32", "dims": ["batch", 1]} for name in ("x", "h")],
    "outputs": [{"name": name, **SUMS} for name in ("y", "n")],
}
ONE = {"data_type": "TYPE_FP32", "dims": [1]}
DOCUMENT = {
    "name": "m",
    "max_batch_size": 2,
    "input": [{"name": "x", **ONE}],
    "output": [{"name": "y", **ONE}],
    "parameters": {
        "device": {"string_value": "null"},
        "executor": {"string_value": "inline"},
        "warmup": {"string_value": "off"},
    },
    "sequence_batching": {
        "oldest": {},
        "state": [{"input_name": "h", "output_name": "n", **ONE}],
    },
}


class Served:
    """A model of sums, whose executors of one device are in this process and can be cut off."""

    def __init__(self, pb_utils, monkeypatch):
        from ge_backend.host.backend import Backend

        self._pb_utils = pb_utils
        self.bench = Bench(None)
        self.at_next_connect = lambda: None
        monkeypatch.setattr(InlineExecutors, "connect", lambda _, *given: self.connect(*given))
        self.backend = Backend.open(instance_of(DOCUMENT))

    def connect(self, *_):
        link, then = self.bench.connect(), self.at_next_connect
        self.at_next_connect = lambda: None
        then()
        return link

    def send(self, number, flags=0):
        """Send a step that adds one; return the sum, or the error's text."""
        ones = self._pb_utils.Tensor("x", np.ones((1, 1), np.float32))
        request = self._pb_utils.InferenceRequest([ones], ["y"], correlation_id=number, flags=flags)
        (response,) = self.backend.execute([request])
        if response.has_error():
            return response.error().message()
        return float(response.output_tensors()[0].as_numpy()[0, 0])

    def close(self):
        self.backend.close()
        self.bench.close()


@pytest.fixture
def served(request, pb_utils, monkeypatch, tmp_path):
    """A served model of the graph, with what the parameter adds to it."""
    graph = {**GRAPH, **getattr(request, "param", {})}
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.null").write_text(json.dumps(graph))
    monkeypatch.setenv("GE_CACHE_DIR", "off")
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path / "m" / "1"))
    served = Served(pb_utils, monkeypatch)
    yield served
    served.close()


def test_a_sequence_that_begins_while_its_device_is_opened_again_lives(served, monkeypatch):
    """Also where an executor dies over that: no one has held its state until then."""
    begun, admit = threading.Event(), Sequencer.admit

    def admitted(*args, **named):
        begun.set()
        return admit(*args, **named)

    def die():
        assert begun.wait(30)
        served.bench.cut()

    assert served.send(1, START) == 1
    monkeypatch.setattr(Sequencer, "admit", admitted)
    served.bench.cut()
    served.at_next_connect = die
    assert served.send(2, START) == 1
    assert len(served.bench.connections) == 3
    assert served.send(2) == 2
    assert "state of sequence 1 was lost" in served.send(1)


@pytest.mark.parametrize("ran", [False, True])
def test_a_sequence_that_begins_as_its_executor_dies(served, monkeypatch, ran):
    """Its first step is sent again if it was not answered; else its state is lost, as told once."""
    submit = InFlight.submit

    def dying(flight, *args, **named):
        monkeypatch.setattr(InFlight, "submit", submit)
        if not ran:
            served.bench.cut()
        sent = submit(flight, *args, **named)
        assert select.select([flight], [], [], 30)[0]
        served.bench.cut()
        return sent

    monkeypatch.setattr(InFlight, "submit", dying)
    assert served.send(1, START) == 1
    if ran:
        assert "state of sequence 1 was lost" in served.send(1)
        assert "not known here" in served.send(1)
        assert served.send(1, START) == 1
    assert served.send(1) == 2


def test_a_sequence_over_whose_first_step_executors_die_is_given_up(served, monkeypatch):
    """It is told so, and the next step does not take what it then has for the beginning."""
    submit = InFlight.submit

    def dying(*args, **named):
        served.bench.cut()
        return submit(*args, **named)

    with monkeypatch.context() as context:
        context.setattr(InFlight, "submit", dying)
        assert "executor died" in served.send(1, START)
    assert "not known here" in served.send(1)
    assert served.send(1, START) == 1


def batch_of(pb_utils, numbers, flags=0, value=1):
    return [
        pb_utils.InferenceRequest(
            [pb_utils.Tensor("x", np.full((1, 1), value * number, np.float32))],
            ["y"],
            correlation_id=number,
            flags=flags,
        )
        for number in numbers
    ]


def told(responses):
    """Return each answer, or its error's text."""
    return [
        one.error().message() if one.has_error() else one.output_tensors()[0].as_numpy().tolist()
        for one in responses
    ]


def test_steps_of_a_batch_go_on_from_their_own_states(served, pb_utils):
    """Whoever is beside whom: those that begin, go on and end come in one run."""
    assert told(served.backend.execute(batch_of(pb_utils, [1, 2], START))) == [[[1]], [[2]]]
    assert told(served.backend.execute(batch_of(pb_utils, [2, 1]))) == [[[4]], [[2]]]
    mixed = [*batch_of(pb_utils, [2], END), *batch_of(pb_utils, [3], START)]
    assert told(served.backend.execute(mixed)) == [[[6]], [[3]]]
    last = told(served.backend.execute(batch_of(pb_utils, [3, 2])))
    assert last[0] == [[6]]
    assert "not known here" in last[1]


@pytest.mark.parametrize(
    "served", [{"faults": [{"on": "run", "do": "fail", "value": 666}]}], indirect=True
)
def test_a_step_of_a_batch_that_fails_leaves_all_states_as_they_are(served, pb_utils):
    """Its own, too; those beside it go on, once."""
    execute = served.backend.execute
    assert told(execute(batch_of(pb_utils, [1, 2], START))) == [[[1]], [[2]]]
    first, second = told(execute(batch_of(pb_utils, [1, 2], value=333)))
    assert first == [[334]]
    assert "a fault was injected" in second
    assert told(execute(batch_of(pb_utils, [1, 2]))) == [[[335]], [[4]]]


def test_an_answer_of_a_batch_that_has_no_room_ends_its_sequence_alone(
    served, pb_utils, monkeypatch
):
    """Those beside it have theirs, from the same run."""
    from ge_backend.host import room

    assert told(served.backend.execute(batch_of(pb_utils, [1, 2], START))) == [[[1]], [[2]]]

    def check(self, arrays):
        if sum(array.size for array in arrays) > 1 or arrays[0] == 4:
            raise OutOfMemory("no room")

    with monkeypatch.context() as patch:
        patch.setattr(room.Room, "check", check)
        first, second = told(served.backend.execute(batch_of(pb_utils, [1, 2])))
    assert first == [[2]]
    assert "no room (this came up when the step had changed the state" in second
    first, second = told(served.backend.execute(batch_of(pb_utils, [1, 2])))
    assert first == [[3]]
    assert "not known here" in second
