"""Every call of ACL is one that pyACL has, called as pyACL wants it, and checked."""

from pathlib import Path

import numpy as np
import pytest

from acl_simulator import Simulator
from acl_simulator.facts import CALLS
from builders.api_use import uses
from ge_backend.engines.acl import models as acl_models
from ge_backend.engines.acl import runtime as acl_runtime
from ge_backend.engines.acl.runtime import AclRuntime
from ge_backend.errors import GraphFailed, OutOfMemory

FOLDER = Path(acl_runtime.__file__).parent
ROOTS = {"self._acl": "", "self._rt": "rt.", "self._mdl": "mdl."}
USED = sorted(
    {
        (prefix + use.name, use)
        for module in (acl_runtime, acl_models)
        for root, prefix in ROOTS.items()
        for use in uses(Path(module.__file__), root)
    }
)


def test_the_calls_are_found():
    """The scan itself works."""
    names = {name for name, _ in USED}
    assert {"init", "rt.malloc", "mdl.execute_async", "create_data_buffer"} <= names
    assert len(names) > 50


@pytest.mark.parametrize(("name", "use"), USED, ids=[name for name, _ in USED])
def test_every_call_is_in_the_facts_with_its_arity(name, use):
    """Positional only, as many arguments as it takes, and never without calling it."""
    fewest, most = CALLS[name].arity
    assert fewest <= use.positional <= most
    assert use.keywords == ()


def test_nothing_else_touches_the_module():
    """All other files go through these two."""
    for path in FOLDER.glob("*.py"):
        if path.name not in {"runtime.py", "models.py"}:
            for root in ROOTS:
                assert not uses(path, root), path


def test_numbers_of_numpy_are_converted(runtime):
    """The C side refuses numpy's integers where it wants an int."""
    size = np.int64(128)
    address, host = runtime.allocate(size), runtime.allocate_host(size)
    stream = runtime.create_stream()
    runtime.upload(np.uint64(address), np.uint64(host), np.int32(64), np.int64(stream))
    runtime.synchronise(np.int64(stream), np.float64(1000))
    assert type(address) is type(host) is type(stream) is int


def test_the_message_of_an_earlier_error_is_not_the_next_ones(sim, runtime):
    """An `init` that was one too many leaves a text behind, which belongs to nothing else."""
    assert not AclRuntime(sim).initialise()
    sim.fail("rt.malloc", 207001, message="the real reason")
    with pytest.raises(OutOfMemory, match="the real reason") as caught:
        runtime.allocate(64)
    assert "100002" not in str(caught.value)


def test_memory_of_a_device_without_hbm(sim, runtime, monkeypatch):
    """Small chips have DDR only, and answer 0 for HBM."""
    monkeypatch.setattr(sim.rt, "get_mem_info", lambda kind: (1, 2, 0) if kind == 0 else (0, 0, 0))
    assert (runtime.memory().free_bytes, runtime.memory().total_bytes) == (1, 2)


def test_memory_that_cannot_be_told_is_an_error(sim, runtime):
    """Neither kind answers."""
    sim.fail("rt.get_mem_info", 100000, times=None)
    with pytest.raises(GraphFailed, match="get_mem_info"):
        runtime.memory()


def test_giving_back_logs_instead_of_raising(sim, runtime, caplog):
    """An error on the way out must not hide the one that led there."""
    for call, action in (
        ("rt.free", lambda: runtime.free(1)),
        ("rt.free_host", lambda: runtime.free_host(1)),
        ("rt.destroy_stream", lambda: runtime.close_stream(1)),
        ("rt.destroy_stream_force", lambda: runtime.abandon_stream(1)),
        ("rt.set_context", lambda: runtime.return_to_context(1)),
        ("rt.reset_device", lambda: runtime.close_device(0)),
        ("finalize", runtime.finalise),
    ):
        sim.fail(call, 107000)
        action()
        assert f"acl.{call} failed with 107000" in caplog.text


class Ascendcl:
    """The library below pyACL, as far as it is called."""

    def __init__(self, sim):
        self.aclrtGetLastError = sim.rt.get_last_error


def test_the_last_error_of_a_thread_by_the_library(monkeypatch):
    """Where pyACL has no name for the call; once taken it is forgotten."""
    sim = Simulator(without=["rt.get_last_error"])
    whole = Simulator()
    opened = []

    def library(name):
        opened.append(name)
        return Ascendcl(whole)

    monkeypatch.setattr(acl_runtime.ctypes, "PyDLL", library)
    runtime = AclRuntime(sim)
    assert opened == ["libascendcl.so"]
    whole.init()
    whole.rt.set_device(9)
    whole.rt.set_device(0)  # success does not reset it
    assert [runtime.take_last_error() for _ in range(2)] == [107001, 0]


@pytest.mark.parametrize("missing", [OSError("no library"), AttributeError("no call")])
def test_a_cann_without_the_last_error(monkeypatch, missing):
    """There is none then."""

    def library(name):
        raise missing

    monkeypatch.setattr(acl_runtime.ctypes, "PyDLL", library)
    assert AclRuntime(Simulator(without=["rt.get_last_error"])).take_last_error() == 0


def test_an_unknown_chip_has_no_name(sim, runtime, monkeypatch):
    """`get_soc_name` may answer None."""
    assert runtime.chip() == "Ascend910B3"
    monkeypatch.setattr(sim, "get_soc_name", lambda: None)
    assert runtime.chip() == ""
