"""Tensors from step to step, errors that name their step, time that is counted."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ge_backend.errors import (
    DeadlineExceeded,
    GraphFailed,
    InvalidRequest,
    OutOfMemory,
    TensorsLost,
)
from ge_backend.executor.protocol.messages import DeviceRows
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import TensorConfig
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.batching.device_tensor import DeviceTensor
from ge_backend.serving.batching.progress import Reply
from ge_backend.serving.batching.request import Request
from ge_backend.serving.ensemble.dag import read_dag
from ge_backend.serving.ensemble.retention import StepRetention
from ge_backend.serving.ensemble.runner import EnsembleRunner, EnsembleStep
from ge_backend.tensors import DATA_TYPES

FP32 = DATA_TYPES["FP32"]


def layout(*names, optional=()):
    return Layout(
        batched=True,
        axes=(),
        limits={},
        outputs=(),
        inputs=tuple(
            InputLayout(
                name=name,
                dtype=FP32,
                dims=(2,),
                axes=(-1,),
                names=("",),
                fill=0.0,
                made="",
                optional=name in optional,
            )
            for name in names
        ),
    )


class Computes:
    """Runs a function of named arrays for each request; 666 is refused, 777 fails."""

    def __init__(self, function, *names, optional=()):
        self.layout = layout(*names, optional=optional)
        self.function = function
        self.closed = False
        self.batches, self.freed = [], []

    def free_tensors(self, keys):
        self.freed += keys

    def run(self, requests, retention=None):
        for position, request in reversed(list(enumerate(requests))):
            values = list(request.tensors.values())
            if any((value == 777).any() for value in values):
                yield Reply(request=position, outputs={}, error=GraphFailed("no"))
            else:
                yield Reply(request=position, outputs=self.function(**request.tensors))

    def close(self):
        self.closed = True


def over(dag, steps, recorder=None):
    """Return the runner of an ensemble with batches."""
    return EnsembleRunner(dag, steps, outside(dag, (2,)), recorder or Recorder())


def outside(dag, dims, *, batched=True):
    """Return what clients of an ensemble get."""
    free = {"dims": dims, "axes": (-1,) * len(dims), "names": ("",) * len(dims)}
    outputs = tuple(OutputLayout(name=name, dtype=FP32, **free) for name in dag.outputs)
    return Layout(batched=batched, axes=(), limits={}, inputs=(), outputs=outputs)


def step_of(node, pipeline, *, reshaped=()):
    def declared(name):
        graph_dims = (1, 2) if name in reshaped else (2,)
        return TensorConfig(
            name=name, dtype=FP32, dims=(2,), graph_dims=graph_dims, ragged=False, optional=False
        )

    return EnsembleStep(
        node=node,
        pipeline=pipeline,
        inputs={name: declared(name) for name in node.inputs},
        outputs={name: declared(name) for name in node.outputs},
    )


DAG = read_dag(
    {
        "name": "e",
        "input": [{"name": "X"}],
        "output": [{"name": "Z"}],
        "ensemble_scheduling": {
            "step": [
                {"model_name": "double", "input_map": {"x": "X"}, "output_map": {"y": "d"}},
                {
                    "model_name": "add",
                    "input_map": {"a": "X", "b": "d"},
                    "output_map": {"z": "Z", "spare": "spare"},
                },
            ]
        },
    }
)


@pytest.fixture
def runner():
    double = Computes(lambda x: {"y": 2 * x}, "x")
    add = Computes(lambda a, b: {"z": a + b, "spare": a}, "a", "b")
    steps = [step_of(DAG.steps[0], double), step_of(DAG.steps[1], add)]
    recorder = Recorder()
    runner = over(DAG, steps, recorder)
    return SimpleNamespace(run=runner.run, close=runner.close, steps=steps, recorder=recorder)


def request(index, *values, name="X"):
    array = np.array([values], np.float32)
    return Request(index=index, rows=1, tensors={name: array}, sizes=())


def run(runner, *requests):
    """Return the outputs or the error of each request, in order."""
    replies = {reply.request: reply for reply in runner.run(requests)}
    return [
        replies[n].error or {name: array.tolist() for name, array in replies[n].outputs.items()}
        for n in range(len(requests))
    ]


def test_tensors_go_from_step_to_step(runner):
    """Fan-out of the client's tensor, fan-in of two, and only the ensemble's outputs come out."""
    assert run(runner, request(5, 1, 2), request(9, 3, 4)) == [{"Z": [[3, 6]]}, {"Z": [[9, 12]]}]


def test_a_failing_step_names_itself_and_the_others_go_on(runner):
    """What fails in the first step does not reach the second."""
    first, failed, last = run(runner, request(0, 1, 2), request(1, 777, 0), request(2, 3, 4))
    assert (first, last) == ({"Z": [[3, 6]]}, {"Z": [[9, 12]]})
    assert isinstance(failed, GraphFailed)
    assert str(failed) == "step 'double': no"


def test_a_request_that_a_step_does_not_take_fails_alone(runner):
    """A wrong shape is found where the step reads it."""
    good, failed = run(runner, request(0, 1, 2), request(1, 1, 2, 3))
    assert good == {"Z": [[3, 6]]}
    assert isinstance(failed, InvalidRequest)
    assert str(failed).startswith("step 'double': ")


def test_an_optional_input_may_be_missing(runner):
    """A client's tensor that was not sent is not given to the step either."""
    add = Computes(lambda b, a=0: {"z": a + b, "spare": b}, "a", "b", optional=["a"])
    double = Computes(lambda x: {"y": x}, "x")
    dag = read_dag(
        {
            "name": "e",
            "input": [{"name": "X"}, {"name": "O"}],
            "output": [{"name": "Z"}],
            "ensemble_scheduling": {
                "step": [
                    {"model_name": "double", "input_map": {"x": "X"}, "output_map": {"y": "d"}},
                    {
                        "model_name": "add",
                        "input_map": {"a": "O", "b": "d"},
                        "output_map": {"z": "Z", "spare": "s"},
                    },
                ]
            },
        }
    )
    steps = [step_of(dag.steps[0], double), step_of(dag.steps[1], add)]
    found = run(over(dag, steps), request(0, 1, 2))
    assert found == [{"Z": [[1, 2]]}]


FORKED = read_dag(
    {
        "name": "e",
        "input": [{"name": "X"}],
        "output": [{"name": "D"}, {"name": "S"}],
        "ensemble_scheduling": {
            "step": [
                {"model_name": "double", "input_map": {"x": "X"}, "output_map": {"y": "D"}},
                {"model_name": "strict", "input_map": {"x": "X"}, "output_map": {"y": "S"}},
            ]
        },
    }
)


def test_a_step_does_not_see_requests_that_do_not_ask_for_what_it_leads_to():
    """So its refusal is not theirs; who says nothing asks for all."""
    double = Computes(lambda x: {"y": 2 * x}, "x")
    strict = Computes(lambda x: {"y": -x}, "x")
    steps = [step_of(s, runs) for s, runs in zip(FORKED.steps, (double, strict), strict=True)]
    runner = over(FORKED, steps)
    asking = [frozenset(names) for names in ({"D"}, {"S"}, (), {"D", "S"})]
    good = [replace(request(n, n, 1), wanted=wanted) for n, wanted in enumerate(asking)]
    assert run(runner, *good) == [
        {"D": [[0, 2]]},
        {"S": [[-1, -1]]},
        {"D": [[4, 2]], "S": [[-2, -1]]},
        {"D": [[6, 2]], "S": [[-3, -1]]},
    ]
    strict.function = None  # is not called for the first one
    assert run(runner, good[0]) == [{"D": [[0, 2]]}]
    strict.layout = layout("other")
    found = run(runner, *good)
    assert found[0] == {"D": [[0, 2]]}
    assert all(str(error).startswith("step 'strict': ") for error in found[1:])


def test_reshapes_are_done_between_steps():
    """The host reshapes for single models; inside an ensemble nobody else is there to."""
    seen = []

    def double(x):
        seen.append(x.shape)
        return {"y": 2 * x}

    wide = Computes(double, "x")
    wide.layout = Layout(
        batched=True,
        axes=(),
        limits={},
        outputs=(),
        inputs=(
            InputLayout(
                name="x", dtype=FP32, dims=(1, 2), axes=(-1, -1), names=("", ""), fill=0.0, made=""
            ),
        ),
    )
    add = Computes(lambda a, b: {"z": a + b, "spare": a}, "a", "b")
    steps = [step_of(DAG.steps[0], wide, reshaped=("x", "y")), step_of(DAG.steps[1], add)]
    assert run(over(DAG, steps), request(0, 1, 2)) == [{"Z": [[3, 6]]}]
    assert seen == [(1, 1, 2)]


def free(step, **graph_dims):
    """Return what a step declares whose tensors have two free dims, and are reshaped."""
    return {
        name: TensorConfig(
            name=name,
            dtype=FP32,
            dims=(-1, -1),
            graph_dims=graph_dims.get(name, (-1, -1)),
            ragged=False,
            optional=False,
        )
        for name in (*step.inputs, *step.outputs)
    }


def free_input(name, rank):
    return InputLayout(
        name=name,
        dtype=FP32,
        dims=(-1,) * rank,
        axes=(-1,) * rank,
        names=("",) * rank,
        fill=0.0,
        made="",
    )


def test_a_shape_that_no_reshape_takes_fails_alone():
    """Whether a client sent it or a graph wrote it; the neighbours have their free dims in order."""
    dag = replace(DAG, steps=DAG.steps[:1], outputs=("d",))
    declared = free(dag.steps[0], x=(-1, 1, -1), y=(-1, 1, -1))
    double = Computes(lambda x: {"y": x[:, 0] if x[0, 0, 0, 0] == 5 else 2 * x}, "x")
    double.layout = replace(double.layout, inputs=(free_input("x", 3),))
    steps = [EnsembleStep(node=dag.steps[0], pipeline=double, inputs=declared, outputs=declared)]
    runner = over(dag, steps)
    good, *failed = run(runner, request(0, [1, 2]), request(1, 1, 2), request(2, [5, 2]))
    assert good == {"d": [[[2, 4]]]}
    assert [type(error) for error in failed] == [InvalidRequest, InvalidRequest]
    assert [str(error).partition(",")[0] for error in failed] == [
        "step 'double': input 'x' has shape [1",
        "step 'double': output 'y' has shape [1",
    ]


def mixed(*, batched, steps):
    """Return an ensemble that is batched or not, over a step that is the other."""
    dag = replace(DAG, steps=DAG.steps[:1], outputs=("d",))
    double = Computes(lambda x: {"y": 2 * x}, "x")
    double.layout = replace(double.layout, batched=steps)
    dims = (2,) if batched else (-1, 2)
    runs = [step_of(dag.steps[0], double)]
    return EnsembleRunner(dag, runs, outside(dag, dims, batched=batched), Recorder())


def test_an_ensemble_without_batches_has_steps_with_them():
    """Each request is a batch of its own rows, as in the host's ensemble."""
    sent = Request(index=0, rows=1, tensors={"X": np.ones((3, 2), np.float32)}, sizes=())
    assert run(mixed(batched=False, steps=True), sent) == [{"d": [[2, 2]] * 3}]


def test_an_ensemble_with_batches_has_steps_without_them():
    """One row is theirs, without its batch dimension; more do not fit, as in the host's ensemble."""
    many = Request(index=1, rows=2, tensors={"X": np.ones((2, 2), np.float32)}, sizes=())
    found, failed = run(mixed(batched=True, steps=False), request(0, 1, 2), many)
    assert found == {"d": [[2, 4]]}
    assert str(failed).startswith("step 'double': input 'x' has shape [2, 2]")


def test_the_time_of_each_step_is_counted(runner):
    """One sum for each step."""
    run(runner, request(0, 1, 2))
    names = {labels for name, labels in runner.recorder.drain() if name == "ge_step_seconds_total"}
    assert names == {(("step", "double"),), (("step", "add"),)}


def test_it_is_ready_and_free_where_all_its_steps_are():
    """Devices that they share are named once."""
    steps = [
        SimpleNamespace(layout=layout("x"), ready=ready, free_at_ns=at, devices=devices)
        for ready, at, devices in ((True, 7.0, ("npu:1", "cpu")), (False, 5.0, ("cpu",)))
    ]
    runner = over(DAG, [step_of(step, runs) for step, runs in zip(DAG.steps, steps, strict=True)])
    assert (runner.ready, runner.free_at_ns, runner.devices) == (False, 7.0, ("npu:1", "cpu"))
    steps[1].ready = True
    assert runner.ready


def test_what_comes_is_counted(runner):
    """Once, whatever steps it passes; these count for themselves."""
    run(runner, request(0, 1, 2), request(1, 3, 4))
    counts = runner.recorder.drain()
    named = ("ge_batches_total", "ge_requests_total", "ge_rows_total")
    assert [counts[name, ()] for name in named] == [1, 2, 2]


def test_closing_leaves_every_step(runner):
    """All executors are left."""
    runner.close()
    assert all(step.pipeline.closed for step in runner.steps)


class OnDevice(Computes):
    """The same, with tensors that stay; those of `memory` are shared with other steps."""

    def __init__(self, memory, function, *names):
        super().__init__(function, *names)
        self.memory = memory

    def run(self, requests, retention=None):
        self.batches.append((sorted({name for r in requests for name in r.on_device}), retention))
        for position, request in enumerate(requests):
            if any(t.rows[0].key not in self.memory for t in request.on_device.values()):
                yield Reply(request=position, outputs={}, error=TensorsLost("gone"))
                continue
            on_device = {name: self.memory[t.rows[0].key] for name, t in request.on_device.items()}
            outputs = self.function(**request.tensors, **on_device)
            yield self.reply(position, outputs, retention)

    def reply(self, position, outputs, retention):
        on_device = {}
        for name, shown in retention.outputs.items() if retention else ():
            key = next(retention.numbers)
            retention.keys.append(key)
            array = self.memory[key] = outputs[name] if shown else outputs.pop(name)
            rows = (DeviceRows(key=key, first=0, count=1, length=2),)
            on_device[name] = DeviceTensor(shape=array.shape, dtype=array.dtype, rows=rows)
        return Reply(request=position, outputs=outputs, on_device=on_device)

    def free_tensors(self, keys):
        super().free_tensors(keys)
        for key in keys:
            self.memory.pop(key, None)


@pytest.fixture
def memory():
    return {}


@pytest.fixture
def resident(memory):
    """The ensemble with its tensor `d` kept between the steps."""
    double = OnDevice(memory, lambda x: {"y": 2 * x}, "x")
    add = OnDevice(memory, lambda a, b: {"z": a + b, "spare": a}, "a", "b")
    steps = [
        replace(
            step_of(DAG.steps[0], double), retention=StepRetention(outputs={"y": False}, frees=True)
        ),
        replace(step_of(DAG.steps[1], add), retention=StepRetention(inputs=frozenset({"b"}))),
    ]
    runner = over(DAG, steps)
    return SimpleNamespace(run=runner.run, double=double, add=add)


def test_a_tensor_stays_between_two_steps(resident, memory):
    """Only its shape and place are seen here, and it is freed with the batch."""
    assert run(resident, request(0, 1, 2), request(1, 3, 4)) == [{"Z": [[3, 6]]}, {"Z": [[9, 12]]}]
    assert [names for names, _ in resident.add.batches] == [["b"]]
    assert (resident.double.freed, resident.add.freed, memory) == ([1, 2], [], {})


def test_a_request_that_is_given_up_is_answered_at_once():
    """Its step's executor shows no life, so the rest of the batch may take any time."""

    class Hung(Computes):
        def run(self, requests, retention=None):
            error = DeadlineExceeded("no life")
            yield Reply(request=0, outputs={}, error=error, remaining_ns=math.inf)

    steps = [
        step_of(DAG.steps[0], Hung(None, "x")),
        step_of(DAG.steps[1], Computes(None, "a", "b")),
    ]
    (reply,) = over(DAG, steps).run([request(0, 1, 2)])
    assert isinstance(reply.error, DeadlineExceeded)
    assert math.isinf(reply.remaining_ns)


def test_no_key_comes_twice(resident):
    """Also in later batches: what is left over of one is never taken for another."""
    for _ in range(3):
        run(resident, request(0, 1, 2))
    assert resident.double.freed == [1, 2, 3]


def test_tensors_are_freed_when_a_step_fails_or_nobody_reads_on(resident, memory):
    """The second step breaks; a batch is given up after its first reply."""
    resident.add.function = lambda a, b: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run(resident, request(0, 1, 2))
    assert memory == {}
    bad = request(0, 1, 2, 3)
    replies = iter(resident.run([bad, request(1, 1, 2)]))
    assert isinstance(next(replies).error, InvalidRequest)
    replies.close()
    assert memory == {}


def test_requests_whose_tensors_are_lost_begin_again_through_the_host(resident, memory):
    """The others keep their answers, though the second way writes over what they lie in."""
    shared = np.zeros((1, 2), np.float32)

    def into_shared(a, b):
        shared[...] = a + b
        return {"z": shared, "spare": a}

    resident.add.function = into_shared
    lose, former = {1}, resident.double.reply

    def losing(position, outputs, retention):
        reply = former(position, outputs, retention)
        if position in lose and retention:
            del memory[reply.on_device["y"].rows[0].key]
        return reply

    resident.double.reply = losing
    assert run(resident, request(0, 1, 2), request(1, 3, 4)) == [{"Z": [[3, 6]]}, {"Z": [[9, 12]]}]
    assert [names for names, _ in resident.add.batches] == [["b"], []]
    assert resident.double.batches[-1][1] is None
    assert memory == {}


@pytest.mark.parametrize(("most", "at_a_step"), [(0, [3]), (2, [2, 1]), (1, [1, 1, 1]), (9, [3])])
def test_no_more_requests_are_at_a_step_than_the_ensemble_allows(most, at_a_step):
    """The others of a batch go through all steps after them; each is answered once, as it was."""
    together = []

    def seen(requests, retention=None):
        together.append(len(requests))
        for position, request in enumerate(requests):
            yield Reply(request=position, outputs={"y": 2 * request.tensors["x"]})

    double = Computes(None, "x")
    double.run = seen
    add = Computes(lambda a, b: {"z": a + b, "spare": a}, "a", "b")
    steps = [step_of(DAG.steps[0], double), step_of(DAG.steps[1], add)]
    runner = EnsembleRunner(DAG, steps, outside(DAG, (2,)), Recorder(), most=most)
    requests = [request(n, n, n) for n in (1, 2, 3)]
    assert run(runner, *requests) == [{"Z": [[3 * n, 3 * n]]} for n in (1, 2, 3)]
    assert together == at_a_step
    assert len(list(runner.run(requests))) == 3
    assert list(runner.run([])) == []  # where none of a batch could be read


@pytest.mark.parametrize("retains", [True, False])
def test_requests_without_room_on_the_device_go_through_the_host(resident, runner, retains):
    """Where nothing would stay, a second try would be the first one again."""
    steps = [resident.double, runner.steps[0].pipeline]
    tried = []

    def full(requests, retention=None):
        tried.append(retention)
        error = OutOfMemory("no room")
        for position, request in enumerate(requests):
            if retention is None and retains:
                yield Reply(request=position, outputs={"y": 2 * request.tensors["x"]})
            else:
                yield Reply(request=position, outputs={}, error=error)

    steps[not retains].run = full
    (found,) = run(resident if retains else runner, request(0, 1, 2))
    if retains:
        assert found == {"Z": [[3, 6]]}
    else:
        assert isinstance(found, OutOfMemory)
    assert len(tried) == 1 + retains


def test_a_tensor_that_is_shown_is_there_for_everybody(memory):
    """The ensemble's output is an array; the next step takes what has stayed."""
    dag = replace(DAG, outputs=("d", "Z"))
    double = OnDevice(memory, lambda x: {"y": 2 * x}, "x")
    add = OnDevice(memory, lambda a, b: {"z": a + b, "spare": a}, "a", "b")
    steps = [
        replace(
            step_of(DAG.steps[0], double), retention=StepRetention(outputs={"y": True}, frees=True)
        ),
        replace(step_of(DAG.steps[1], add), retention=StepRetention(inputs=frozenset({"b"}))),
    ]
    found = run(over(dag, steps), request(0, 1, 2))
    assert found == [{"d": [[2, 4]], "Z": [[3, 6]]}]
    assert add.batches[0][0] == ["b"]


def test_what_nobody_wants_is_not_asked_for(memory):
    """The step says so with every batch, though nothing of it stays."""
    double = OnDevice(memory, lambda x: {"y": 2 * x}, "x")
    add = OnDevice(memory, lambda a, b: {"z": a + b}, "a", "b")
    steps = [
        step_of(DAG.steps[0], double),
        replace(
            step_of(DAG.steps[1], add), retention=StepRetention(unrequested=frozenset({"spare"}))
        ),
    ]
    found = run(over(DAG, steps), request(0, 1, 2))
    assert found == [{"Z": [[3, 6]]}]
    ((_, retention),) = add.batches
    assert retention.unrequested == {"spare"}
