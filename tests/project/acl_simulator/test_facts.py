"""The simulator against the table, and the table against itself."""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

from acl_simulator import Simulator
from acl_simulator.calls.entries import Entry
from acl_simulator.facts import CALLS

ARGUMENTS = {"s": "", "S": b"", "L": [], "D": {}, "T": (), "O": 0, **dict.fromkeys("kKiIbBhf", 0)}


def entry(sim, name: str) -> Entry:
    namespace, _, short = name.rpartition(".")
    return getattr(getattr(sim, namespace) if namespace else sim, short)


def arguments(name: str) -> list:
    return [ARGUMENTS[letter] for letter in CALLS[name].arguments.replace("|", "")]


@pytest.mark.parametrize("name", CALLS)
def test_every_call_takes_the_arguments_of_the_table_by_position(sim, name):
    fewest, most = CALLS[name].arity
    parameters = inspect.signature(entry(sim, name)._act).parameters.values()
    assert len(parameters) == most
    assert sum(p.default is inspect.Parameter.empty for p in parameters) == fewest
    with pytest.raises(TypeError, match=f"acl.{name} args parse failed"):
        entry(sim, name)(*[0] * (most + 1))
    if fewest:
        with pytest.raises(TypeError, match=f"acl.{name} args parse failed"):
            entry(sim, name)(*arguments(name)[: fewest - 1])
    with pytest.raises(TypeError, match="no keyword arguments"):
        entry(sim, name)(*arguments(name), size=1)


@pytest.mark.parametrize("name", [n for n, call in CALLS.items() if "k" in call.arguments])
def test_pointers_and_sizes_are_nothing_but_int(sim, name):
    at = CALLS[name].arguments.index("k")
    for value in (np.int64(1), 1.0, None):
        given = arguments(name)
        given[at] = value
        with pytest.raises(TypeError, match=f"acl.{name} args parse failed: int is required"):
            entry(sim, name)(*given)


@pytest.mark.parametrize("name", [n for n, call in CALLS.items() if call.returns])
def test_a_failing_call_returns_what_the_table_says(sim, name):
    kinds = CALLS[name].returns
    sim.fail(name, 507000)
    result = entry(sim, name)(*arguments(name))
    values = result if len(kinds) > 1 else (result,)
    assert len(values) == len(kinds)
    for kind, value in zip(kinds, values, strict=True):
        expected = {"ret": 507000, "dict": {}, "str": "", "text": None, "bytes": b""}.get(kind, 0)
        assert kind in ("dicts", "array") or value == expected


def test_the_module_has_nothing_else(sim):
    names = set()
    for name, value in sim.module().items():
        within = vars(value) if isinstance(value, SimpleNamespace) else None
        names |= {f"{name}.{short}" for short in within} if within else {name}
    assert names == set(CALLS)


def test_an_older_version_lacks_calls():
    sim = Simulator(without=["rt.set_stream_res_limit", "get_soc_name"])
    assert not hasattr(sim.rt, "set_stream_res_limit")
    assert "get_soc_name" not in sim.module()
    assert hasattr(sim.rt, "create_stream")
