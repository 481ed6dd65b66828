"""Every call of a simulated NPU's driver fails once, with every kind of code: nothing worse happens."""

import functools
import re

import numpy as np
import pytest

from acl_simulator import DimsGears, Encoder, write_om
from acl_simulator.refusals import Misuse
from builders.npu import BROKEN, INVALID, LATE, NO_MEMORY, PAIRS, Npu
from ge_backend.errors import GeError

GEARS = [(1, 16, 1, 16), (4, 16, 4, 16)]


def served(npu, path):
    """Load a model, run it twice in each gear, close it; return the last answer."""
    graph = npu.load(path)
    for rows in (1, 4, 1, 4):
        ids = np.ones((rows, 16), np.int64)
        inputs = {"input_ids": ids, "attention_mask": ids}
        graph.prepare(inputs)
        answer = graph.run(inputs, {}, exclusive=False)
    return answer


def calls_of(folder):
    """Return the calls that opening a device, serving a model and closing it all make."""
    npu = Npu(folder)
    try:
        served(npu, npu.write(Encoder(), DimsGears(PAIRS, GEARS)))
    finally:
        npu.close()
    return {name: n for name, n in npu.sim.calls.items() if may_fail(npu.sim, name)}


def may_fail(sim, name):
    """Whether a call says that it failed; one that only reads a description says what it reads."""
    returns = functools.reduce(getattr, name.split("."), sim).call.returns
    return "ret" in returns or "get_" not in name


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    return calls_of(tmp_path_factory.mktemp("npu"))


# What such a call refuses to give back stays with the device, whoever asks.
GIVES_BACK = re.compile("destroy|free|unload|reset|finalize|unregister")


def tried(folder, path, name, code, after):
    """Return what becomes of a model that is served while a call fails: `right`, or an error."""
    npu = Npu(folder)
    expected = served(npu, path)
    made = npu.sim.calls[name]
    npu.sim.fail(name, code, after=after)
    try:
        found = served(npu, path)
    except GeError as error:
        outcome = type(error).__name__
    else:
        outcome = "right"
        np.testing.assert_array_equal(found["y"], expected["y"])
    struck = npu.sim.calls[name] > made + after
    npu.sim.heal()
    left = ""
    try:
        npu.close()
    except (AssertionError, Misuse) as error:
        left = str(error)
    assert not left or GIVES_BACK.search(name) or outcome == "DeviceFault", (name, after, left)
    return outcome if struck else ""


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (INVALID, "GraphFailed"),
        (NO_MEMORY, "OutOfMemory"),
        (BROKEN, "DeviceFault"),
        (LATE, "DeviceFault"),
    ],
)
def test_a_call_that_fails_is_an_error_of_ours_and_leaves_nothing(calls, tmp_path, code, error):
    """The first time that it is made, and a later one; else the answer is right.

    Where the device itself broke its process ends, and what is left there with it.
    """
    path = write_om(tmp_path / "model.om", Encoder(), DimsGears(PAIRS, GEARS))
    outcomes = {
        (name, after): tried(tmp_path, path, name, code, after)
        for name, count in sorted(calls.items())
        for after in dict.fromkeys([0, count // 3])
    }
    struck = [outcome for outcome in outcomes.values() if outcome]
    assert len(struck) > 30
    assert {"right", error} <= set(struck)
