import json

import pytest

from ge_tools.model.demand import Demand
from ge_tools.report.memory import Repository, memory_json, memory_text, plan_devices

GIB = 1 << 30


def demand(
    model, workspace, *, weights=1.0, io=0.0, run_ms=10, devices=("npu:0",), memory=32, cache=0
):
    return Demand(
        model=model,
        devices=devices,
        weights_bytes=int(weights * GIB),
        io_bytes=None if io is None else int(io * GIB),
        workspace_bytes=int(workspace * GIB),
        run_ns=run_ms * 1_000_000,
        memory_bytes=int(memory * GIB),
        cache_bytes=int(cache * GIB),
    )


def repository(*demands, pool=0.0, broken=(), left_out=(), **pools):
    names = {name for one in demands for name in one.devices}
    sizes = {name: int(pools.get(name.replace(":", ""), pool) * GIB) for name in names}
    return Repository(
        devices=plan_devices(demands, sizes), broken=dict(broken), left_out=tuple(left_out)
    )


# A 32 GB device whose weights take 18 GB; workspaces of 8 and 6 GB fit only in turn.
A, B = demand("a", 8, weights=10), demand("b", 6, weights=8)


def test_one_pool_makes_room():
    """12 GiB for both; without a pool they do not fit, only just with the larger weights."""
    tight = [demand("a", 8, weights=10, memory=31), demand("b", 6, weights=8, memory=31)]
    (apart,) = repository(*tight).devices
    assert not apart.fits
    assert apart.missing_bytes == apart.needed_bytes - 31 * GIB > 0
    (pooled,) = repository(*tight, pool=12).devices
    assert pooled.fits
    assert (pooled.needed_bytes, pooled.missing_bytes) == (30 * GIB, 0)
    assert pooled.plan.waits_for("a") == ("b",)


def test_text_for_a_person():
    """Word for word: places, turns and sums."""
    lines = memory_text(repository(A, B, pool=12))
    assert lines[:2] == [
        "npu:0: 2 models, workspace pool 12 GiB",
        "model  weights  io buffers  workspace  range         waits for",
    ]
    assert [line.split() for line in lines[2:4]] == [
        ["a", "10", "GiB", "0", "B", "8", "GiB", "0", "B", "to", "8", "GiB", "b"],
        ["b", "8", "GiB", "0", "B", "6", "GiB", *lines[3].split()[7:-1], "a"],
    ]
    assert lines[4:] == [
        "workspace: the largest need is 8 GiB, 14 GiB keep all apart",
        "memory: weights 18 GiB, io buffers 0 B, pool 12 GiB: 30 GiB in all of the device's 32 GiB",
    ]


def test_what_does_not_fit_says_by_how_much():
    """A workspace larger than the pool, and a device with too little memory."""
    lines = memory_text(repository(demand("big", 14, weights=24), A, pool=12))
    assert "does not fit: big needs 14 GiB of workspace, 2 GiB more than the pool has" in lines
    assert "does not fit: npu:0 has 14 GiB too little" in lines
    assert "does not fit" in lines[2]


def test_what_is_not_known():
    """No place in the pool, a dash, and a line that says so."""
    lines = memory_text(repository(demand("free", 0, io=None), A, pool=12))
    assert lines[2].split() == ["free", "1", "GiB", "-", "-", "-"]
    assert lines[-1] == "not known before they run, and not in the pool: the workspace of free"
    assert repository(demand("free", 0, io=None), pool=12).fits


def test_caches_of_text_count():
    """In a column of their own, where there is one, in the sum, and in what is missing."""
    found = repository(demand("writer", 0, io=None, weights=8, cache=26), A, pool=12)
    lines = memory_text(found)
    assert lines[1].split()[:4] == ["model", "weights", "cache", "io"]
    assert lines[2].split()[:5] == ["writer", "8", "GiB", "26", "GiB"]
    assert lines[3].split()[:4] == ["a", "10", "GiB", "-"]
    assert "weights 18 GiB, caches 26 GiB, io buffers 0 B, pool 12 GiB: 56 GiB in all" in lines[5]
    assert "does not fit: npu:0 has 24 GiB too little" in lines
    assert json.loads(memory_json(found))["devices"]["npu:0"]["cache_bytes"] == 26 * GIB


def test_who_waits_for_everybody():
    """Names are only listed where that says more than `all others`."""
    others = [demand(f"m{number}", 1, run_ms=1) for number in range(4)]
    lines = memory_text(repository(demand("big", 12, run_ms=1), *others, pool=12))
    assert lines[2].endswith("  all others")
    assert lines[3].endswith("  big")


def test_each_device_has_its_own_plan():
    """A model with several devices is on each; a device without a pool has no ranges."""
    both = demand("both", 2, devices=("npu:0", "npu:1"))
    found = repository(A, both, pool=12, npu1=0.0)
    first, second = found.devices
    assert [d.model for d in first.demands] == ["a", "both"]
    assert [d.model for d in second.demands] == ["both"]
    assert (first.pool_bytes, second.pool_bytes) == (12 * GIB, 0)
    assert "npu:1: 1 model, no pool" in memory_text(found)


@pytest.mark.parametrize(
    ("broken", "fits"), [({}, True), ({"bad": "no model file in bad/1"}, False)]
)
def test_the_rest_of_a_repository(broken, fits):
    """Broken models keep it from being served; models of other backends do not."""
    found = repository(A, pool=12, broken=broken, left_out=["ensemble"])
    assert found.fits is fits
    lines = memory_text(found)
    assert ("broken: bad: no model file in bad/1" in lines) is not fits
    assert lines[-1] == "left out: ensembles, and models of other backends: ensemble"


def test_nothing_but_broken_models():
    """There is no device to plan for."""
    assert memory_text(repository(broken={"bad": "no"})) == ["broken: bad: no"]


def test_json_says_the_same():
    """In bytes."""
    found = json.loads(memory_json(repository(A, demand("big", 14), pool=12, broken={"x": "y"})))
    assert (found["fits"], found["broken"]) == (False, {"x": "y"})
    device = found["devices"]["npu:0"]
    assert device["shortages"] == {"big": 2 * GIB}
    assert device["needed_bytes"] == 11 * GIB + 12 * GIB
    assert device["models"]["a"]["range"] == [0, 8 * GIB + 64]
    assert device["models"]["big"]["range"] is None
    assert device["models"]["a"]["workspace_bytes"] == 8 * GIB
