"""The NPU as a device: every kind of model, every fault, nothing misused and nothing left."""

import sys
import threading
import types

import numpy as np
import pytest

from acl_simulator import (
    Affine,
    BatchGears,
    MatMul,
    PixelMeans,
    Ranges,
    Simulator,
    Static,
    StaticV2,
    Sums,
    TorchNpu,
    write_om,
)
from builders.npu import (
    BROKEN,
    INVALID,
    KINDS,
    LATE,
    NO_MEMORY,
    Npu,
    encoder,
    floats,
    kinds,
    run,
    tokens,
)
from ge_backend.device.base import GraphSource, Range, open_device
from ge_backend.device.health import Health
from ge_backend.device.workspace.pool import Pool
from ge_backend.engines.kinds.npu import NpuDevice
from ge_backend.errors import (
    ConfigError,
    DeviceFault,
    DeviceUnavailable,
    GeError,
    GraphFailed,
    ModelError,
    OutOfMemory,
    Unsupported,
)
from ge_backend.model.files.copying import copy_files

# What must not happen while requests are served.
ALLOCATING = ("malloc", "create_", "load", "free", "destroy_")


class Places:
    """A workspace whose place is where the test says."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.asked: list[int] = []

    def place(self, nbytes: int) -> Range:
        self.asked.append(nbytes)
        return Range(offset=self.offset, nbytes=nbytes)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_computes_what_it_should(npu, kind):
    """One file or several, with one shape, gears or ranges: results are right, also in places."""
    path, inputs, expected = kinds(npu.folder)[kind]
    graph = npu.load(path)
    graph.prepare(inputs)
    for _ in range(3):
        for place in ({}, {"y": np.empty_like(expected["y"])}):
            result = graph.run(inputs, place, exclusive=False)["y"]
            assert np.array_equal(result, expected["y"])
            assert result is place.get("y", result)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unknown"])
def test_a_thousand_runs_allocate_nothing(npu, kind):
    """After the first run there is no memory, handle or model that comes or goes."""
    path, inputs, _ = kinds(npu.folder)[kind]
    graph = npu.load(path)
    graph.prepare(inputs)
    run(graph, **inputs)
    before = npu.sim.calls.copy()
    for _ in range(1000):
        run(graph, **inputs)
    made = npu.sim.calls - before
    assert made["mdl.execute_async"] == 1000
    named = {n for n in made if any(word in n for word in ALLOCATING)}
    # ACL wants a description of each input's shape, and keeps a copy of its own.
    assert named <= ({"create_tensor_desc", "destroy_tensor_desc"} if kind == "range" else set())


def test_a_run_makes_few_calls(npu):
    """One context, one gear, a copy for each tensor, the run and one wait; an old error's code."""
    graph = npu.load(encoder(npu.folder))
    run(graph, **tokens(1, 16))
    before = npu.sim.calls.copy()
    run(graph, **tokens(1, 16))
    assert npu.sim.calls - before == {
        "rt.set_context": 1,
        "mdl.set_input_dynamic_dims": 1,
        "rt.memcpy_async": 3,
        "rt.get_last_error": 1,
        "mdl.execute_async": 1,
        "rt.synchronize_stream_with_timeout": 1,
    }


def test_only_what_a_gear_needs_is_copied(npu):
    """A small gear moves its own bytes, not those of the largest."""
    graph = npu.load(encoder(npu.folder))
    up, down = npu.sim.uploaded_bytes, npu.sim.downloaded_bytes
    run(graph, **tokens(1, 16))
    gear_bytes = 2 * 1 * 16 * 8
    assert npu.sim.uploaded_bytes - up == gear_bytes
    assert npu.sim.downloaded_bytes - down == 1 * 8 * 4


@pytest.mark.parametrize("pool_bytes", [0, 1 << 20])
def test_several_threads_and_several_models_at_once(tmp_path, pool_bytes):
    """Every thread gets its own results, although models share streams, work memory and slots."""
    npu = Npu(tmp_path, delay_s=0.0005)
    assert npu.device.reserve(pool_bytes) == pool_bytes
    graphs = [npu.load(encoder(tmp_path, "model.om"))]
    if not pool_bytes:  # who shares a place in the pool is kept apart by the executor
        other = write_om(tmp_path / "other.om", Sums(), BatchGears({"x": (-1, 9)}, [(2,), (4,)]))
        graphs.append(npu.load(other))
    wrong = []

    def work(seed):
        for step in range(30):
            graph = graphs[(seed + step) % len(graphs)]
            if graph is graphs[0]:
                inputs = tokens(*[(1, 16), (4, 16), (4, 32)][step % 3], seed=seed * 100 + step)
                expected = _expected(inputs)
            else:
                inputs = {"x": floats(2 + 2 * (step % 2), 9, seed=seed)}
                expected = inputs["x"].sum(axis=1, dtype=np.float32)
            if not np.array_equal(run(graph, **inputs)["y"], expected):
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    npu.close()


def _expected(inputs):
    from acl_simulator import Encoder

    return Encoder().expected(**inputs)["y"]


def test_work_memory_lies_where_the_pool_says(npu):
    """The pool is one block; a graph asks for what its largest file needs, once."""
    devices = len(npu.sim.allocations())
    assert npu.device.reserve(1 << 20) == 1 << 20
    (block,) = npu.sim.allocations()[devices:]
    assert block.size == 1 << 20
    workspace = Places(4096)
    path, inputs, expected = kinds(npu.folder)["grid"]
    graph = npu.load(path, workspace)
    assert workspace.asked == [graph.workspace_bytes({"x": (4, 16)})]
    assert np.array_equal(run(graph, **inputs)["y"], expected["y"])
    assert graph.workspace_bytes({"x": (1, 8)}) < workspace.asked[0]
    assert graph.workspace_bytes({"x": (9, 9)}) == 0


def test_models_that_take_turns_may_share_their_place(npu):
    """Two graphs on the same bytes are right as long as one runs after the other."""
    npu.device.reserve(1 << 16)
    first = npu.load(encoder(npu.folder), Places(0))
    second = npu.load(write_om(npu.folder / "b.om", Affine(), Static({"x": (4, 64)})), Places(0))
    for seed in range(5):
        inputs, x = tokens(4, 32, seed), floats(4, 64, seed=seed)
        assert np.array_equal(run(first, **inputs)["y"], _expected(inputs))
        assert np.array_equal(run(second, x=x)["y"], Affine().expected(x=x)["y"])


def test_free_dimensions_take_no_place(npu):
    """The system manages their work memory, and the pool is told that none of it is theirs."""
    npu.device.reserve(1 << 16)
    workspace = Places(0)
    path, inputs, expected = kinds(npu.folder)["range"]
    graph = npu.load(path, workspace)
    assert np.array_equal(run(graph, **inputs)["y"], expected["y"])
    assert (workspace.asked, graph.workspace_bytes({"x": (3, 7)})) == ([0], 0)


def test_loads_of_one_file_share_its_weights(npu):
    """The second load of a file takes no weight memory, and the first may be closed before it."""
    path = npu.write(MatMul(rows=64, columns=64), Static({"x": (2, 64)}))
    weight_bytes = 64 * 64 * 4
    one = npu.load(path)
    other = npu.load(path, **{"npu.timeout_s": "5"})
    blocks = [block for block in npu.sim.allocations() if block.size == weight_bytes]
    assert len(blocks) == 1
    x = floats(2, 64)
    expected = run(one, x=x)["y"]
    one.close()
    assert np.array_equal(run(other, x=x)["y"], expected)


def test_memory_is_what_the_device_says(npu):
    """What is loaded is missing from what is free."""
    before = npu.device.memory()
    path = npu.write(MatMul(rows=512, columns=512), Static({"x": (2, 512)}))
    npu.load(path)
    after = npu.device.memory()
    assert after.total_bytes == before.total_bytes
    assert before.free_bytes - after.free_bytes >= 512 * 512 * 4


# What goes wrong.


def life(npu, path, inputs):
    """Load, run and close a model; return what was done last, and the error."""
    done = "load"
    graph = None
    try:
        graph = npu.load(path)
        done = "run"
        graph.prepare(inputs)
        run(graph, **inputs)
        done = "all"
    except GeError as error:
        return done, error
    return done, None


CHECKED = ("destroy", "free", "unload", "finalize", "reset")


def calls_of_a_life(tmp_path, kind):
    """Return the calls that may fail and be told of, in a load and a run of a model."""
    from acl_simulator.facts import CALLS

    npu = Npu(tmp_path)
    before = npu.sim.calls.copy()
    path, inputs, _ = kinds(tmp_path)[kind]
    assert life(npu, path, inputs) == ("all", None)
    called = sorted((npu.sim.calls - before).keys())
    npu.close()
    return (
        path,
        inputs,
        [
            name
            for name in called
            if {"ret", "ptr"} & set(CALLS[name].returns)
            and not any(word in name for word in CHECKED)
            and name not in {"mdl.get_dataset_buffer", "get_data_buffer_addr"}
        ],
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (INVALID, {"load": ModelError, "run": GraphFailed}),
        (NO_MEMORY, {"load": OutOfMemory, "run": OutOfMemory}),
        (BROKEN, {"load": DeviceFault, "run": DeviceFault}),
        (LATE, {"load": DeviceFault, "run": DeviceFault}),
    ],
    ids=["invalid", "memory", "broken", "late"],
)
def test_every_call_that_fails_is_told_and_leaves_nothing(tmp_path, kind, code, told):
    """Whichever call fails, with whichever code: our error, in one line, and all is given back."""
    path, inputs, calls = calls_of_a_life(tmp_path, kind)
    # A file of one shape is not asked what comes of a gear.
    assert len(calls) >= (15 if kind in {"static", "static_v2", "grid"} else 16)
    if code == INVALID and kind in {
        "range",
        "unknown",
        "static_v2",
    }:  # then they load without a plan
        calls.remove("mdl.query_size")
    for name in calls:
        npu = Npu(tmp_path)
        npu.sim.fail(
            name, code, message="E19999: first\nsecond\nTraceBack (most recent call last):"
        )
        done, error = life(npu, path, inputs)
        handles = "ret" not in _returns(name)  # such a call has no code to return
        expected = {"load": ModelError, "run": GraphFailed} if handles else told
        if name.startswith("mdl.load") and code in {BROKEN, LATE}:  # the device answers: the file
            expected = {"load": ModelError}
        assert type(error) is expected[done], (name, done, error)
        assert "\n" not in str(error)
        if not handles:
            assert f"acl.{name} failed with {code}" in str(error)
            assert "E19999: first second" in str(error)
        npu.close()


def _returns(name):
    from acl_simulator.facts import CALLS

    return CALLS[name].returns


@pytest.mark.parametrize("code", [INVALID, NO_MEMORY, BROKEN])
def test_a_device_that_cannot_be_taken_is_given_back(code):
    """Each step of opening may fail: one message that names the device, and nothing is left."""
    steps = [
        "init",
        "rt.get_device_count",
        "rt.set_device",
        "rt.get_context",
        "rt.create_stream",
    ]
    for name in steps:
        sim = Simulator()
        sim.fail(name, code)
        with pytest.raises(DeviceUnavailable, match=r"npu:0 cannot be taken: .*npu-smi") as caught:
            NpuDevice(sim)
        assert "\n" not in str(caught.value)
        assert sim.calls["finalize"] == int(name != "init")
        sim.check()


def test_a_device_out_of_range_is_named():
    """The message says how many there are, and what decides it."""
    sim = Simulator(devices=2)
    with pytest.raises(DeviceUnavailable, match=r"no npu:2: this process sees 2 NPU\(s\)"):
        NpuDevice(sim, 2)
    sim.check()
    device = NpuDevice(Simulator(devices=2), 1)
    assert device.name == "npu:1"


def test_without_cann_the_message_says_what_to_source(monkeypatch):
    """`import acl` fails where CANN was not set up."""
    monkeypatch.setitem(sys.modules, "acl", None)
    with pytest.raises(DeviceUnavailable, match=r"npu:0 needs CANN.*source <CANN>/set_env.sh"):
        open_device("npu")


def test_the_module_is_found_by_its_name(monkeypatch):
    """`npu:1` opens the second device of the module `acl`."""
    sim = Simulator(devices=2)
    module = types.ModuleType("acl")
    vars(module).update(sim.module())
    monkeypatch.setitem(sys.modules, "acl", module)
    device = open_device("npu:1")
    assert device.name == "npu:1"
    device.close()
    sim.check()


def test_another_library_that_owns_acl_keeps_it(tmp_path):
    """Where torch_npu has initialised ACL before, we neither complain nor finalise it."""
    npu = Npu(tmp_path, owned_elsewhere=True)
    run(npu.load(encoder(tmp_path)), **tokens(1, 16))
    npu.close()
    assert npu.sim.calls["finalize"] == 0


def test_torch_npu_goes_on_beside_offline_models(tmp_path, monkeypatch):
    """Its streams belong to the device's primary context, which is still the thread's afterwards."""
    npu = Npu(tmp_path)
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    torch = TorchNpu(npu.sim)
    graph = npu.load(encoder(tmp_path))
    outcome = []

    def work():
        for _ in range(2):
            torch.run()
            outcome.append(run(graph, **tokens(1, 16)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    assert len(outcome) == 4
    graph.close()
    npu.device.close()
    torch.leave()
    npu.sim.check()


@pytest.mark.parametrize("stale", [NO_MEMORY, BROKEN, 507009])
def test_what_torch_npu_is_refused_is_not_told_as_an_earlier_error(tmp_path, monkeypatch, stale):
    """It puts the thread's last code into every message, and success does not reset that."""
    npu = Npu(tmp_path)
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    torch = TorchNpu(npu.sim)
    for enters, told in ((False, stale), (True, 161002)):
        npu.sim.fail("rt.malloc", stale)
        npu.sim.rt.malloc(64, 0)  # torch frees what it keeps, and succeeds the second time
        npu.sim.rt.free(npu.sim.rt.malloc(64, 0)[0])
        if enters:
            npu.device._device.enter()
        with pytest.raises(RuntimeError, match=f"error code is {told}"):
            torch.refuse(161002)
    npu.device.close()
    torch.leave()
    npu.sim.check()


def test_acl_is_left_to_torch_npu_once_that_is_there(tmp_path, monkeypatch):
    """One `finalize` ends ACL for the whole process, and torch_npu uses it as the process ends."""
    npu = Npu(tmp_path)
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    torch = TorchNpu(npu.sim)
    npu.device.close()
    assert npu.sim.calls["finalize"] == npu.sim.calls["rt.reset_device"] == 0
    torch.leave()
    npu.sim.check()


def test_a_context_that_another_library_set_does_not_matter(npu):
    """torch_npu changes the thread's context between our runs."""
    graph = npu.load(encoder(npu.folder))
    for _ in range(2):
        context, _ = npu.sim.rt.create_context(0)
        inputs = tokens(1, 16)
        assert np.array_equal(run(graph, **inputs)["y"], _expected(inputs))
        npu.sim.rt.destroy_context(context)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "INVALID|100003"), (b"not a model", "begins with"), (None, "damaged")],
    ids=["empty", "text", "half"],
)
def test_a_file_that_is_no_model_is_explained(npu, content, words):
    """Name, ACL's reason, and what an .om must be for this machine."""
    path = encoder(npu.folder)
    path.write_bytes(path.read_bytes()[:-40] if content is None else content)
    with pytest.raises(
        ModelError, match=r"model\.om cannot be loaded: .*--soc_version=Ascend910B3"
    ):
        npu.load(path)


def test_a_file_with_tasks_that_a_part_of_a_device_lacks_is_no_fault(tmp_path):
    """507009 says something about the file: other models go on."""
    npu = Npu(tmp_path, vnpu=True)
    with pytest.raises(ModelError, match=r"507009 \(type of task not supported\).*vNPU"):
        npu.load(encoder(tmp_path))
    graph = npu.load(encoder(tmp_path, vnpu=True))
    assert np.array_equal(run(graph, **tokens(1, 16))["y"], _expected(tokens(1, 16)))
    npu.close()


@pytest.mark.parametrize("code", [507011, 507018, 507899])
def test_a_load_that_fails_as_if_the_device_had_is_one_models_if_that_answers(npu, code):
    """The device is asked; what runs on it goes on."""
    other = npu.load(npu.write(Sums(), Static({"x": (2, 4)}), "other.om"))
    npu.sim.fail("mdl.load_*", code)
    with pytest.raises(ModelError, match=f"model.om cannot be loaded: .*{code}"):
        npu.load(encoder(npu.folder))
    assert run(other, x=floats(2, 4))


@pytest.mark.parametrize("asked", ["rt.memset_async", "rt.synchronize_stream_with_timeout"])
def test_a_load_that_fails_is_a_fault_if_the_device_does_not_answer(npu, asked):
    """Then nothing is run on it any more."""
    npu.sim.fail("mdl.load_*", 507899)
    npu.sim.fail(asked, 507899)
    with pytest.raises(DeviceFault, match="507899"):
        npu.load(encoder(npu.folder))
    with pytest.raises(DeviceFault, match="not used again"):
        npu.load(encoder(npu.folder))


@pytest.mark.parametrize(
    ("used_up", "lack", "work"), [("rt.malloc", 207001, 1), ("rt.create_stream", 207008, 0)]
)
def test_a_load_that_fails_on_a_full_device_is_one_models(npu, used_up, lack, work):
    """What the device is asked with was set aside when it was opened."""
    other = npu.load(npu.write(Sums(), Static({"x": (2, 4)}), "other.om"))
    third = npu.write(Sums(), Static({"x": (3, 4)}), "third.om")
    npu.sim.fail("mdl.load_*", 507000)
    npu.sim.fail(used_up, lack, after=work, times=None)
    with pytest.raises(ModelError, match=r"507000.*the device itself answers"):
        npu.load(third)
    npu.sim.heal()
    assert run(other, x=floats(2, 4))


@pytest.mark.parametrize("asked", ["rt.memset_async", "rt.synchronize_stream_with_timeout"])
def test_a_device_that_lacks_what_it_would_be_asked_with_is_no_fault(npu, asked):
    """Nobody knows then; the model may be loaded later."""
    other = npu.load(npu.write(Sums(), Static({"x": (2, 4)}), "other.om"))
    npu.sim.fail("mdl.load_*", 507899)
    npu.sim.fail(asked, 207005)
    with pytest.raises(OutOfMemory, match="207005"):
        npu.load(encoder(npu.folder))
    assert run(other, x=floats(2, 4))


def test_a_load_that_finds_no_program_left_is_a_lack(npu):
    """507032 counts what is registered: unloading another model helps."""
    npu.sim.fail("mdl.load_*", 507032)
    with pytest.raises(OutOfMemory, match=r"507032 \(no program left\)"):
        npu.load(encoder(npu.folder))
    assert run(npu.load(encoder(npu.folder)), **tokens(1, 16))


@pytest.mark.parametrize("shapes", [Ranges({"x": ((1, 9), (1, 64))}), StaticV2({"x": (3, 7)})])
def test_what_runtime_v2_runs_loads_where_no_memory_can_be_planned_for_it(tmp_path, shapes):
    """The documents forbid to ask for their sizes, and older versions refuse: ACL takes its own."""
    npu = Npu(tmp_path, plans_ranges=False)
    graph = npu.load(npu.write(Sums(), shapes))
    assert graph.shape_policy.prepared == isinstance(shapes, StaticV2)
    x = floats(3, 7)
    assert np.array_equal(run(graph, x=x)["y"], Sums().expected(x=x)["y"])
    npu.close()


def test_an_old_cann_does_not_say_the_limits_of_ranges(tmp_path):
    """The model loads, and ACL refuses what is too large when it is run."""
    npu = Npu(tmp_path, without=("mdl.get_input_dims_range",), plans_ranges=False)
    axes = {"x": ["batch", "length"], "y": ["batch"]}
    graph = npu.load(npu.write(Sums(), Ranges({"x": ((1, 9), (1, 64))}), axes=axes))
    assert graph.signature.axis_limits == {}
    x = floats(3, 7)
    assert np.array_equal(run(graph, x=x)["y"], Sums().expected(x=x)["y"])
    with pytest.raises(GraphFailed, match="is not within"):
        run(graph, x=floats(10, 7))
    npu.close()


def test_a_model_for_another_chip_is_explained(npu):
    """ACL's own words name both chips."""
    path = encoder(npu.folder, soc="Ascend310P3")
    with pytest.raises(ModelError, match=r"Ascend310P3.*this device is a Ascend910B3"):
        npu.load(path)


def test_too_large_a_model_is_refused_with_the_numbers(tmp_path):
    """What it needs and what is free; a smaller one still loads."""
    npu = Npu(tmp_path, hbm_bytes=1 << 20)
    path = npu.write(MatMul(rows=1024, columns=1024), Static({"x": (2, 1024)}))
    with pytest.raises(OutOfMemory, match=r"4 MiB needed, .* of 1 MiB free .*unload another"):
        npu.load(path)
    x = floats(2, 4)
    small = npu.load(npu.write(Sums(), Static({"x": (2, 4)}), "small.om"))
    assert np.array_equal(run(small, x=x)["y"], Sums().expected(x=x)["y"])
    npu.close()


def test_a_pool_that_is_too_large_is_refused(tmp_path):
    """`reserve` says what it wanted."""
    npu = Npu(tmp_path, hbm_bytes=1 << 20)
    with pytest.raises(OutOfMemory, match=r"the workspace pool: 1 GiB needed"):
        npu.device.reserve(1 << 30)
    npu.close()


def test_a_run_that_hangs_is_a_fault_of_the_device(npu):
    """After the model's own time limit; nothing is run any more, and all is given back."""
    graph = npu.load(encoder(npu.folder), **{"npu.timeout_s": "0.5"})
    other = npu.load(npu.write(Sums(), Static({"x": (2, 4)}), "other.om"))
    npu.sim.hang("kernel.*")
    with pytest.raises(DeviceFault, match=r"507046 \(the device did not finish in time\)"):
        run(graph, **tokens(1, 16))
    with pytest.raises(DeviceFault, match=r"npu:0 failed and is not used again: .*507046"):
        run(other, x=floats(2, 4))
    with pytest.raises(DeviceFault, match="not used again"):
        npu.load(npu.folder / "other.om")
    assert npu.device.memory().total_bytes > 0


@pytest.mark.parametrize("code", [507014, 507015, 507018, 507035, 507054, 507899])
def test_a_kernel_that_breaks_is_a_fault_of_the_device(npu, code):
    """Found when the run is waited for."""
    graph = npu.load(encoder(npu.folder))
    npu.sim.fail("kernel.*", code)
    with pytest.raises(DeviceFault, match=f"failed with {code}"):
        run(graph, **tokens(1, 16))


def test_a_refused_run_leaves_the_device_well(npu):
    """What was queued before the refusal is waited for, and the next run is right."""
    graph = npu.load(encoder(npu.folder))
    npu.sim.fail("mdl.execute_async", INVALID)
    with pytest.raises(GraphFailed, match="execute_async"):
        run(graph, **tokens(1, 16))
    assert npu.sim.in_flight() == []
    inputs = tokens(4, 32)
    assert np.array_equal(run(graph, **inputs)["y"], _expected(inputs))


def test_what_gives_back_never_fails(npu, caplog):
    """An error while freeing is logged; the rest is given back all the same."""
    graph = npu.load(encoder(npu.folder))
    npu.sim.fail("rt.free_host", INVALID, message="no such thing")
    graph.close()
    assert "acl.rt.free_host failed with 100000 (invalid parameter)" in caplog.text
    (left,) = [block for block in npu.sim.allocations() if block.place == "host"]
    npu.sim.rt.free_host(left.start)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "1e9"])
def test_a_time_limit_that_is_none_is_refused(npu, text):
    """It is seconds above 0, as far as ACL can count."""
    with pytest.raises(ConfigError, match=f"npu.timeout_s' is '{text}'; expected seconds"):
        npu.load(encoder(npu.folder), **{"npu.timeout_s": text})


@pytest.mark.parametrize("key", ["atc.log", "ge.aicoreNum", "npu.speed", "tokenizer.max_length"])
def test_options_that_mean_nothing_to_a_compiled_model_are_refused(npu, key):
    """Nothing that is configured is silently without effect."""
    with pytest.raises(ConfigError, match=f"parameter '{key}' has no meaning for model.om"):
        npu.load(encoder(npu.folder), **{key: "1"})


def test_a_precision_that_a_compiled_model_cannot_change_is_refused(npu):
    """It was chosen when the model was compiled."""
    source = GraphSource.of(encoder(npu.folder), precision="fp16")
    with pytest.raises(ConfigError, match=r"'precision' is 'fp16', and model.om is compiled"):
        npu.device.load(source)


def test_torch_models_run_beside(tmp_path, monkeypatch):
    """On torch's own streams; they are opened with the first such model, and given back."""
    torch = pytest.importorskip("torch")
    from fakes.torch_vendor import FakeVendor
    from ge_backend.engines.torch import npu as torch_npu

    npu = Npu(tmp_path)
    vendor = FakeVendor()
    given_back = []
    monkeypatch.setattr(vendor, "give_back", lambda: given_back.append("all"))
    monkeypatch.setattr(torch_npu, "open_npu", lambda *_, **__: vendor)
    path = npu.folder / "model.pt"
    torch.jit.script(torch.nn.ReLU()).save(str(path))
    graph = npu.load(path, **{"torch.mode": "eager"})
    (result,) = graph.run({"input": floats(2, 3)}, {}, exclusive=False).values()
    assert np.array_equal(result, np.maximum(floats(2, 3), 0))
    with pytest.raises(ConfigError, match=r"'ge.aicoreNum' has no meaning for model.pt"):
        npu.load(path, **{"ge.aicoreNum": "1"})
    assert np.array_equal(
        run(npu.load(encoder(npu.folder)), **tokens(1, 16))["y"], _expected(tokens(1, 16))
    )
    npu.close()
    assert given_back == ["all"] * 2  # by the graph, and by the device


def test_an_encoders_checkpoint_is_torchs(tmp_path, monkeypatch):
    """It is loaded as on a GPU; a text generator's folder is not loaded as a graph."""
    pytest.importorskip("transformers")
    from builders.checkpoints import as_sentence_encoder, write_checkpoint
    from fakes.torch_vendor import FakeVendor
    from ge_backend.engines.torch import encoder_accelerator
    from ge_backend.engines.torch import npu as torch_npu

    monkeypatch.setattr(encoder_accelerator, "MAX_TOKENS", 24)
    monkeypatch.setattr(torch_npu, "open_npu", lambda *_, **__: FakeVendor())
    npu = Npu(tmp_path)
    folder = as_sentence_encoder(write_checkpoint(npu.folder))
    graph = npu.load(folder / "config.json", **{"torch.mode": "graphs"})
    given = {"input_ids": np.full((2, 3), 7), "attention_mask": np.ones((2, 3), np.int64)}
    (result,) = graph.run(given, {}, exclusive=False).values()
    np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1, atol=1e-5)
    npu.close()


def test_torch_finds_this_npu_in_every_thread(monkeypatch):
    """A thread without a context would open npu:0 as well. Source: torch_npu, GetDevice."""
    pytest.importorskip("torch")
    from fakes.torch_vendor import FakeVendor
    from ge_backend.engines.torch import npu as torch_npu

    class Entering(FakeVendor):
        def __init__(self, index, enter, **_):
            super().__init__()
            self.index, self.into = index, enter

        def enter(self):
            self.into()

    def seen(use):
        found = []
        thread = threading.Thread(target=lambda: found.append((use(), sim.rt.get_device())[1]))
        thread.start()
        thread.join()
        return found[0]

    monkeypatch.setattr(torch_npu, "open_npu", Entering)
    sim = Simulator(devices=2)
    device = NpuDevice(sim, 1)
    streams = device.torch_streams()
    assert streams.vendor.index == 1
    assert device.torch_streams() is streams  # one for graphs and text generators
    _, none = seen(lambda: None)
    assert none != 0
    assert seen(device.torch_streams) == seen(streams.vendor.enter) == (1, 0)
    device.close()


FIRST_910 = ("Ascend910", "Ascend910A", "Ascend910B", "Ascend910ProB", "Ascend910PremiumA")


@pytest.mark.parametrize(
    ("chip", "puts_rows", "captures", "bf16"),
    [
        ("Ascend310P3", False, True, False),
        ("Ascend310B1", False, False, True),
        *((chip, False, False, False) for chip in FIRST_910),
        *((chip, True, True, True) for chip in ("Ascend910B3", "Ascend910_9382", "Ascend950")),
    ],
)
def test_what_chips_lack(tmp_path, monkeypatch, chip, puts_rows, captures, bf16):
    """No BF16, no text generators; sequences are served row by row; nothing is captured."""
    torch = pytest.importorskip("torch")
    from fakes.torch_vendor import FakeVendor
    from ge_backend.engines.torch import npu as torch_npu

    asked = []
    monkeypatch.setattr(
        torch_npu, "open_npu", lambda *_, **given: asked.append(given) or FakeVendor()
    )
    sim = Simulator()
    monkeypatch.setattr(sim, "get_soc_name", lambda: chip)
    device = NpuDevice(sim)
    path = tmp_path / "model.pt"
    torch.jit.script(torch.nn.ReLU()).save(str(path))
    if not puts_rows:
        with pytest.raises(Unsupported, match=f"{chip}, which lacks the operator"):
            device.torch_streams()
    if not bf16:
        with pytest.raises(ConfigError, match=f"'bf16', which {chip} does not have; say 'fp16'"):
            device.load(GraphSource.of(path, precision="bf16"))
    device.load(GraphSource.of(path, precision="bf16" if bf16 else "origin")).close()
    assert asked == [{"puts_rows": puts_rows, "captures": captures}]
    device.close()


def test_torch_models_take_nothing_of_the_workspace_pool(tmp_path, monkeypatch):
    """Their scratch is torch's own memory, so nothing that is measured counts against the pool."""
    torch = pytest.importorskip("torch")
    from fakes.torch_vendor import FakeVendor
    from ge_backend.engines.torch import npu as torch_npu

    monkeypatch.setattr(torch_npu, "open_npu", lambda *_, **__: FakeVendor())
    npu, pool = Npu(tmp_path), Pool(1 << 20)
    path = npu.folder / "model.pt"
    torch.jit.script(torch.nn.ReLU()).save(str(path))
    npu.device.load(GraphSource.of(path), pool.workspace("relu"))
    assert pool.place("relu", 1 << 30, bound=False).nbytes == 0
    npu.close()


def test_other_kinds_of_files_are_named(npu):
    """The device says what it runs, and what is not there."""
    with pytest.raises(ModelError, match=r"the npu device runs \.om, \.onnx, \.pt2, \.pt"):
        npu.device.load(GraphSource(path="/m/model.tflite", stamp=""))
    with pytest.raises(ModelError, match="there is no such file"):
        npu.device.load(GraphSource(path="/m/model.om", stamp=""))


def test_an_npu_says_how_it_is(npu):
    """Its status and how busy it is; after a fault, too."""
    npu.sim.tell(busy_percent=40)
    assert npu.device.health() == Health(abnormal=0, cube=40, vector=20, aicpu=0)
    npu.sim.tell(abnormal=True)
    assert npu.device.health().abnormal == 1


def test_an_old_cann_says_less(tmp_path):
    """What a version lacks, or refuses, is not known."""
    npu = Npu(tmp_path, without=("rt.query_device_status",))
    assert npu.device.health() == Health(cube=0, vector=0, aicpu=0)
    npu.sim.fail("rt.get_device_utilization_rate", 207000)
    assert npu.device.health() == Health()
    npu.close()
    older = Npu(tmp_path, without=("rt.query_device_status", "rt.get_device_utilization_rate"))
    assert older.device.health() == Health()
    older.close()


def test_the_configuration_of_acl_is_handed_on(tmp_path, monkeypatch):
    """GE_ACL_CONFIG: dumps and profiling begin with the process."""
    file = tmp_path / "acl.json"
    file.write_text('{"dump": {"dump_scene": "aic_err_brief_dump"}}')
    sim = Simulator()
    module = types.ModuleType("acl")
    vars(module).update(sim.module())
    monkeypatch.setitem(sys.modules, "acl", module)
    monkeypatch.setenv("GE_ACL_CONFIG", str(file))
    device = open_device("npu")
    assert sim.config == str(file)
    device.close()
    monkeypatch.setenv("GE_ACL_CONFIG", str(tmp_path / "none.json"))
    with pytest.raises(
        DeviceUnavailable, match=r"GE_ACL_CONFIG is '.*none.json', which is no file"
    ):
        open_device("npu")


def test_a_configuration_that_comes_too_late_is_told(tmp_path, caplog):
    """Another library has initialised ACL without it."""
    file = tmp_path / "acl.json"
    file.write_text("{}")
    device = NpuDevice(Simulator(owned_elsewhere=True), config=str(file))
    assert "acl.json has no effect" in caplog.text
    device.close()


def test_a_model_has_a_priority(npu):
    """ACL is told by a configuration; the memory stays ours."""
    npu.load(npu.write(Sums(), Static({"x": (2, 4)}), "other.om"))
    before = npu.sim.allocations()
    graph = npu.load(npu.write(MatMul(), Static({"x": (2, 8)})), **{"npu.priority": "7"})
    assert npu.sim.priorities == [0, 7]
    assert len(npu.sim.allocations()) > len(before)  # weights and work memory are of our giving
    x = floats(2, 8)
    assert np.array_equal(run(graph, x=x)["y"], MatMul().expected(x=x)["y"])


@pytest.mark.parametrize("plans_ranges", [False, True])
def test_a_model_with_ranges_has_a_priority_too(tmp_path, plans_ranges):
    """Also where ACL takes all its memory itself."""
    npu = Npu(tmp_path, plans_ranges=plans_ranges)
    path = npu.write(Sums(), Ranges({"x": ((1, 9), 4)}))
    graph = npu.load(path, **{"npu.priority": "3"})
    assert npu.sim.priorities == [3]
    assert run(graph, x=floats(2, 4))["y"].shape == (2,)
    npu.close()


@pytest.mark.parametrize("text", ["8", "-1", "high"])
def test_a_priority_that_there_is_not(npu, text):
    """The error has the range."""
    with pytest.raises(ConfigError, match=f"'npu.priority' is '{text}'; expected 0, .* to 7"):
        npu.load(encoder(npu.folder), **{"npu.priority": text})


DYNAMIC_AIPP = """aipp_op {
  aipp_mode: dynamic
  input_format: RGB888_U8
  src_image_size_w: 6
  src_image_size_h: 8
  mean_chn_0: 100
  var_reci_chn_0: 0.5
}
"""


@pytest.mark.parametrize("gears", [False, True])
def test_a_model_is_told_what_to_do_with_its_images(npu, gears):
    """Dynamic AIPP: the file beside the model has the parameters and the images' size."""
    shapes = Static({"x": (4, 8, 6, 3)})
    if gears:
        shapes = BatchGears({"x": (-1, 8, 6, 3)}, [(1,), (4,)])
    path = npu.write(PixelMeans(), shapes, aipp_max=1000)
    (npu.folder / "aipp.cfg").write_text(DYNAMIC_AIPP)
    graph = npu.load(path, **{"npu.aipp": "aipp.cfg"})
    rows = "batch" if gears else "4"
    assert graph.signature.input("x").describe() == f"UINT8 [{rows}, 8, 6, 3]"
    photos = np.random.default_rng(1).integers(0, 256, (4, 8, 6, 3)).astype(np.uint8)
    for sent in (photos, photos[:1]) if gears else (photos,):
        expected = sent.astype(np.float32).mean(axis=(1, 2))
        expected[:, 0] = (expected[:, 0] - 100) / 2
        assert np.allclose(run(graph, x=sent)["y"], expected, rtol=1e-5)


def test_what_is_done_to_images_is_read_again_with_the_model(npu):
    """Another file makes another source of it; a copy that is kept has the file beside it."""
    path = npu.write(PixelMeans(), Static({"x": (1, 8, 6, 3)}), aipp_max=1000)
    file, kept = npu.folder / "aipp.cfg", npu.folder / "kept"
    file.write_text(DYNAMIC_AIPP)
    kept.mkdir()
    options = {"npu.aipp": "aipp.cfg"}
    source = GraphSource.of(path, options=tuple(options.items()))
    copy_files(source.files(), npu.folder, kept, 1 << 20)
    file.write_text(DYNAMIC_AIPP.replace("100", "0"))
    assert not source.is_current()
    photos = np.full((1, 8, 6, 3), 200, np.uint8)
    changed, before = npu.load(path, **options), npu.load(kept / path.name, **options)
    assert run(changed, x=photos)["y"][0, 0] == 100
    assert run(before, x=photos)["y"][0, 0] == 50


def test_parameters_for_images_and_models_that_want_none(npu):
    """Each without the other is refused, and says what to do."""
    (npu.folder / "aipp.cfg").write_text(DYNAMIC_AIPP)
    path = npu.write(PixelMeans(), Static({"x": (4, 8, 6, 3)}), aipp_max=1000)
    with pytest.raises(Unsupported, match=r"name a file .* 'npu\.aipp'"):
        npu.load(path)
    with pytest.raises(Unsupported, match="has no dynamic AIPP"):
        npu.load(encoder(npu.folder), **{"npu.aipp": "aipp.cfg"})
    (npu.folder / "aipp.cfg").write_text(DYNAMIC_AIPP * 2)
    with pytest.raises(ConfigError, match="2 inputs"):
        npu.load(path, **{"npu.aipp": "aipp.cfg"})
