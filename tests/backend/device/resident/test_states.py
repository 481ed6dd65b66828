"""Which states lie where; what is computed with them is each engine's own test."""

from dataclasses import replace

import numpy as np
import pytest

from builders.npu_states import state
from ge_backend.device.resident.state_layout import StateLayout
from ge_backend.device.resident.states import StateStore, open_states
from ge_backend.errors import GraphFailed, StateLost


class Buffer:
    def __init__(self, nbytes):
        self.nbytes, self.bytes = nbytes, np.full(nbytes, 0xAB, np.uint8)

    def close(self):
        self.bytes = None


class Memory:
    """Host memory as if it were a device's; copies begin at multiples of 64 bytes."""

    name, alignment = "fake", 64

    def allocate(self, nbytes, what):
        assert "sequences" in what
        return Buffer(nbytes)

    def upload(self, buffer, content):
        buffer.bytes[: content.nbytes] = content


class Graph:
    """h_next = h + x, n_next = n + 1, y = h + x; no states of `bad` type fit."""

    def __init__(self, memory=None, bad=False):
        self.memory, self.bad, self.hidden = memory, bad, []

    def device_memory(self):
        return self.memory

    def run(self, inputs, outputs, *, exclusive):
        total = inputs["h"] + inputs["x"]
        following = (inputs["n"] + 1).astype(np.float64 if self.bad else np.float32)
        return {"y": total, "h_next": total.copy(), "n_next": following}

    def run_bound(self, inputs, outputs, bound):
        self.hidden.append(bound.hidden)
        given = {name: made(item) for name, item in bound.inputs.items()}
        results = self.run({**inputs, **given}, outputs, exclusive=False)
        for name, item in bound.outputs.items():
            content = results[name].reshape(-1).view(np.uint8)
            for copy in item.copies:
                part = content[copy.offset : copy.offset + copy.nbytes]
                copy.buffer.bytes[copy.place : copy.place + copy.nbytes] = part
        return {name: value for name, value in results.items() if name not in bound.hidden}


def made(item):
    """Return the input that the copies make."""
    content = np.zeros(item.nbytes, np.uint8)
    for copy in item.copies:
        assert copy.place % Memory.alignment == 0
        part = copy.buffer.bytes[copy.place : copy.place + copy.nbytes]
        content[copy.offset : copy.offset + copy.nbytes] = part
    return content.view(item.dtype.numpy).reshape(item.shape)


def state_layout(*states, batched=True):
    hidden = frozenset(one.output for one in states) | {"undeclared"}
    return StateLayout(states=states, count=3, batched=batched, hidden=hidden)


BOTH = state("h", 16), state("n", 1)


def step(states, x, slots, starting=()):
    x = np.array(x, np.float32).repeat(16).reshape(-1, 16)
    results, shapes = states.run({"x": x}, {}, slots, starting, rows=len(x), exclusive=False)
    assert list(results) == ["y"]
    assert shapes == {}
    return results["y"][: len(slots), 0].tolist()


@pytest.mark.parametrize("memory", [None, Memory()], ids=["host", "device"])
def test_every_slot_goes_on_from_its_own_state(memory):
    """Wherever it lies, whoever shares the batch; padding begins with the initial value."""
    states = StateStore(Graph(memory), state_layout(*BOTH), memory)
    assert states.on_device == (() if memory is None else ("h",))
    assert step(states, [1, 10], [2, 0], starting=[2, 0]) == [1, 10]
    assert step(states, [1, 1, 1, 1], [0, 2]) == [11, 2]
    assert step(states, [5], [2], starting=[2]) == [5]
    states.close()


@pytest.mark.parametrize("memory", [None, Memory()], ids=["host", "device"])
def test_the_shapes_of_states_that_vary_are_told(memory):
    """Only theirs: the others are known beforehand."""
    growing = replace(state("n", 1), dims=(-1,))
    states = StateStore(Graph(memory), state_layout(state("h", 16), growing), memory)
    x = {"x": np.ones((1, 16), np.float32)}
    assert states.run(x, {}, [0], [0], rows=1, exclusive=False)[1] == {"n": (1,)}
    states.close()


@pytest.mark.parametrize("memory", [None, Memory()], ids=["host", "device"])
def test_a_slot_that_has_never_begun_has_no_state(memory):
    """Whoever would go on from it was elsewhere before; nothing has run, and nothing has changed."""
    states = StateStore(Graph(memory), state_layout(*BOTH), memory)
    assert step(states, [1], [0], starting=[0]) == [1]
    for slots, starting in (([1], []), ([0, 1], []), ([1, 2], [1])):
        with pytest.raises(StateLost, match="went with the executor that had it; begin"):
            step(states, [5] * len(slots), slots, starting=starting)
    assert step(states, [1, 7], [0, 1], starting=[1]) == [2, 7]
    states.close()


def test_what_cannot_be_copied_on_the_device_is_downloaded():
    """The other states are not, nor is what nobody declared."""
    graph = Graph(Memory())
    states = open_states(graph, state_layout(*BOTH))
    step(states, [1], [0], starting=[0])
    assert graph.hidden == [{"h_next", "undeclared"}]


def test_a_device_whose_memory_holds_no_state_still_hides_outputs():
    """They would cross the bus for nothing; and a refused state has changed nothing."""
    graph = Graph(Memory(), bad=True)
    states = open_states(graph, state_layout(state("n", 1)))
    assert states.on_device == ()
    x = {name: np.zeros((1, 16), np.float32) for name in ("x", "h")}
    with pytest.raises(GraphFailed, match="n_next") as refused:
        states.run(x, {}, [0], [0], rows=1, exclusive=False)
    assert not isinstance(refused.value, StateLost)
    assert graph.hidden == [{"undeclared"}]


def test_states_that_have_moved_on_without_the_others_are_lost():
    """The ones on the device have, by the time that one for the host is refused."""
    states = open_states(Graph(Memory(), bad=True), state_layout(*BOTH))
    with pytest.raises(StateLost, match="n_next"):
        step(states, [1], [0], starting=[0])


def test_without_a_batch_dimension_a_state_of_any_size_stays():
    """Each slot begins where a copy may begin."""
    states = open_states(Graph(Memory()), state_layout(*BOTH, batched=False))
    assert states.on_device == ("h", "n")
    for slot, total in ((2, 1), (1, 1), (2, 2)):
        x = {"x": np.ones(16, np.float32)}
        starting = [slot] if total == 1 else []
        results, _ = states.run(x, {}, [slot], starting, rows=1, exclusive=False)
        assert results["y"].tolist() == [total] * 16


def test_states_that_were_given_back_are_not_used():
    """A late run is told so."""
    states = open_states(Graph(Memory()), state_layout(*BOTH))
    states.close()
    with pytest.raises(GraphFailed, match="given back"):
        step(states, [1], [0], starting=[0])


class Stacked(Graph):
    """h_next = h + x in both halves of `[2, batch, 16]`, y = the second half."""

    def run(self, inputs, outputs, *, exclusive):
        total = inputs["h"] + inputs["x"]
        return {"y": total[1], "h_next": total, "n_next": inputs["n"] + 1}


@pytest.mark.parametrize("memory", [None, Memory()], ids=["host", "device"])
def test_a_state_with_the_batch_inside_goes_on_from_its_own_parts(memory):
    """They are copied one by one where each is as long as the device's memory asks."""
    stacked = replace(state("h", 16), dims=(2, 16), initial_dims=(2, 16), axis=1)
    states = StateStore(Stacked(memory), state_layout(stacked, state("n", 1)), memory)
    assert states.on_device == (() if memory is None else ("h",))
    assert step(states, [1, 10], [2, 0], starting=[2, 0]) == [1, 10]
    assert step(states, [1, 1, 1, 1], [0, 2]) == [11, 2]
    assert step(states, [5], [2], starting=[2]) == [5]
    states.close()
    short = replace(stacked, dims=(16, 2), initial_dims=(16, 2))
    assert StateStore(Stacked(memory), state_layout(short), memory).on_device == ()
