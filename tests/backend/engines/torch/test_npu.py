"""torch on NPUs: every name and keyword that is used of torch_npu, held against its sources.

The wheels cannot be imported without CANN, so their sources are parsed. `make test` fetches the one
that is recommended, `make wheels` all of them.
"""

import ast
import inspect
import os
import re
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from builders.api_use import uses  # noqa: E402
from builders.wheel_sources import WheelSources  # noqa: E402
from ge_backend.engines.torch import npu as torch_npu  # noqa: E402
from ge_backend.engines.torch import vendor as torch_vendor  # noqa: E402
from ge_backend.engines.torch.npu import open_npu  # noqa: E402
from ge_backend.errors import DeviceUnavailable  # noqa: E402

ROOT = Path(__file__).resolve().parents[4]
NPU = Path(torch_npu.__file__)
VENDOR = Path(torch_vendor.__file__)
NAMES = "torch_npu.npu"
COMPILER = "torch_npu.dynamo.torchair"
USED = [
    *((NAMES, use) for use in sorted(uses(NPU, "torch.npu") | uses(VENDOR, "self.api"))),
    *((COMPILER, use) for use in sorted(uses(NPU, "torchair"))),
]
# As in the Makefile: the newest of each torch that Ascend's table has a CANN for, and two after it.
VERSIONS = ("2.7.1", "2.8.0", "2.9.0", "2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0")
# What is done with the objects that those names make, and what they are.
MADE = {"Stream": "Stream", "Event": "Event", "CapturedGraph": "NPUGraph"}


@pytest.fixture(scope="module", params=VERSIONS)
def sources(request):
    wheels = sorted(ROOT.glob(f".cache/wheels/torch_npu-{request.param}-*.whl"))
    if not wheels:
        pytest.skip(
            f"torch_npu {request.param} is not in .cache/wheels: `make test` fetches the "
            "recommended one, `make wheels` all"
        )
    return WheelSources(wheels[-1])


def test_the_names_are_found_in_our_files():
    """The scan itself works: it sees calls with their keywords, and names that are not called."""
    found = {(use.name, use.keywords) for _, use in USED}
    assert ("graph", ("capture_error_mode", "pool", "stream")) in found
    assert ("set_compile_mode", ("jit_compile",)) in found
    assert ("conv.allow_hf32", ()) in found
    assert ("get_npu_backend", ("compiler_config",)) in found


@pytest.mark.parametrize(("module", "use"), USED, ids=[use.name for _, use in USED])
def test_every_name_is_there_and_takes_what_it_is_given(sources, module, use):
    """A name that is called takes so many arguments and these keywords."""
    sources.find(module, use.name)
    if use.positional >= 0:
        names, anything = sources.parameters(module, use.name)
        assert use.positional <= len(names)
        assert anything or set(use.keywords) <= set(names[use.positional :])


@pytest.mark.parametrize("protocol", MADE)
def test_objects_have_the_methods_that_are_used(sources, protocol):
    """Streams, events and graphs take what our protocols say, in that order."""
    node = sources.find(NAMES, MADE[protocol])
    theirs = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
    for name, ours in inspect.getmembers(getattr(torch_vendor, protocol), inspect.isfunction):
        if not name.startswith("_"):
            wanted = list(inspect.signature(ours).parameters)
            assert [a.arg for a in theirs[name].args.args][: len(wanted)] == wanted


def test_values_that_are_passed_as_text(sources):
    """Modes are chosen by a word, which the sources must know."""
    assert '"thread_local"' in sources.text("torch_npu.npu.graphs")
    assert '"max-autotune"' in sources.text("torch_npu.dynamo.torchair.configs.compiler_config")
    assert "self.mode" in sources.text("torch_npu.dynamo.torchair.configs.compiler_config")


def test_the_allocator_can_be_told_that_a_capture_has_ended(sources):
    """It is called as the sources themselves call it: with the device's index and the pool."""
    text = sources.text("torch_npu.npu._graph_tree")
    assert [f"torch_npu._C.{name}(device, mem_pool)" in text for name in torch_npu.END_POOL].count(
        True
    ) == 1


def test_torch_has_the_module(sources):
    """`torch.npu` is `torch_npu.npu`."""
    try:
        text = sources.text("torch_npu._init.registry.backend")
    except LookupError:  # before 2.11
        text = sources.text("torch_npu")
    assert '_register_device_module("npu", torch_npu.npu)' in text.replace("'", '"')


def test_a_wrong_name_would_be_found(sources):
    """The check can fail."""
    with pytest.raises(LookupError):
        sources.find(NAMES, "Streams")
    with pytest.raises(LookupError):
        sources.find(NAMES, "conv.allow_tf32")
    names, anything = sources.parameters(NAMES, "graph")
    assert "enable_annotations" not in names
    assert not anything


@pytest.mark.parametrize("error", [ImportError, RuntimeError, OSError])
def test_without_cann_it_says_what_to_install(monkeypatch, error):
    """Whatever the import raises is the reason."""

    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "torch_npu":
                raise error("libhccl.so: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(DeviceUnavailable, match=r"'npu:1' needs torch_npu .*libhccl.*set_env\.sh"):
        open_npu(1)


class Settings(types.SimpleNamespace):
    """`torch.npu` with two NPUs, which notes what is set."""

    def __init__(self):
        super().__init__(matmul=types.SimpleNamespace(), conv=types.SimpleNamespace())
        self.NPUGraph = object
        self.calls = []

    def is_available(self):
        return True

    def device_count(self):
        return 2

    def set_device(self, index):
        self.calls.append(index)

    def set_compile_mode(self, *, jit_compile):
        self.calls.append(jit_compile)


@pytest.fixture
def npus(monkeypatch):
    """What is set in the environment is undone."""
    monkeypatch.setenv("TASK_QUEUE_ENABLE", "0")
    settings = Settings()
    module = types.ModuleType("torch_npu")
    module._C = types.SimpleNamespace(_npu_endAllocateToPool="ends it")
    module.__version__ = "2.12.0"
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    monkeypatch.setattr(torch, "npu", settings, raising=False)
    return settings


def test_operators_are_not_compiled_for_each_shape_and_float32_stays_float32(npus):
    """What a process that has opened an NPU has set."""
    assert open_npu(1).device == "npu:1"
    assert npus.calls == [1, False]
    assert not npus.matmul.allow_hf32
    assert not npus.conv.allow_hf32


@pytest.mark.parametrize("name", ["_npu_endAllocateToPool", "_npu_endAllocateCurrentStreamToPool"])
def test_versions_before_2_13_have_another_name_for_the_end_of_a_capture(npus, name):
    """All that Ascend's table has a CANN for are such versions."""
    sys.modules["torch_npu"]._C = types.SimpleNamespace(**{name: "ends it"})
    assert open_npu(0).end_pool == "ends it"


def test_a_version_that_has_none_of_the_names(npus):
    """It is unavailable, with the names that were looked for; nothing else is raised."""
    sys.modules["torch_npu"]._C = types.SimpleNamespace()
    with pytest.raises(DeviceUnavailable, match=r"torch_npu 2\.12\.0 has none of _npu_endAll"):
        open_npu(0)


@pytest.mark.parametrize(
    ("name", "given", "left"),
    [
        ("TASK_QUEUE_ENABLE", "2", "0"),
        ("TASK_QUEUE_ENABLE", "1", "0"),
        ("TASK_QUEUE_ENABLE", "0", "0"),
        ("TORCH_NPU_COMPACT_ERROR_OUTPUT", "1", None),
        ("PYTORCH_NPU_ALLOC_CONF", "pin_memory_expandable_segments:True", ""),
        (
            "PYTORCH_NPU_ALLOC_CONF",
            "max_split_size_mb:64,pin_memory_expandable_segments:True",
            "max_split_size_mb:64",
        ),
        ("PYTORCH_NPU_ALLOC_CONF", "expandable_segments:True", "expandable_segments:True"),
    ],
)
def test_settings_that_do_not_do_here_are_undone(npus, monkeypatch, caplog, name, given, left):
    """Guides recommend them for training; the log says what was changed."""
    monkeypatch.setenv(name, given)
    with caplog.at_level("WARNING"):
        open_npu(0)
    assert os.environ.get(name) == left
    assert (name in caplog.text) == (given != left)


def test_operators_are_not_launched_by_another_thread(npus, monkeypatch, caplog):
    """By default they are: torch_npu drops what is queued behind an error, and says it once."""
    monkeypatch.delenv("TASK_QUEUE_ENABLE", raising=False)
    with caplog.at_level("WARNING"):
        open_npu(0)
    assert os.environ["TASK_QUEUE_ENABLE"] == "0"
    assert not caplog.text


def test_an_index_out_of_range(npus):
    """The error names how many there are."""
    with pytest.raises(DeviceUnavailable, match="'npu:2': torch sees 2 NPUs"):
        open_npu(2)


def test_torchair_compiles_each_shape(npus, monkeypatch):
    """The GE graph, static shapes, and more of them than torch.compile makes by default."""

    def backend(graph, inputs):
        compiled.append([tuple(tensor.shape) for tensor in inputs])
        return graph.forward

    compiled, configs = [], []
    torchair = types.SimpleNamespace(
        CompilerConfig=types.SimpleNamespace,
        get_npu_backend=lambda *, compiler_config: configs.append(compiler_config) or backend,
    )
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)
    monkeypatch.setitem(sys.modules, "torch_npu.dynamo", types.SimpleNamespace(torchair=torchair))
    rows = {0: torch.export.Dim("rows", min=1, max=64)}
    example = torch.zeros(3, 2)
    module = torch.export.export(torch.nn.ReLU(), (example,), dynamic_shapes=(rows,)).module()
    open_npu(0).compile(module)
    with torch.inference_mode():
        for count in (*range(2, 12), 2):
            assert module(torch.full((count, 2), -1.0)).tolist() == [[0, 0]] * count
    assert configs[0].mode == "max-autotune"
    assert compiled == [[(count, 2)] for count in range(2, 12)]


def test_torchair_that_is_missing(npus, monkeypatch):
    """The error says which mode asked for it."""
    monkeypatch.setitem(sys.modules, "torch_npu.dynamo", None)
    with pytest.raises(DeviceUnavailable, match=r"torch\.mode torchair: torchair cannot be"):
        open_npu(0).compile(torch.nn.ReLU())


@pytest.mark.parametrize(
    ("text", "memory", "fault"),
    [
        ("NPU out of memory. Tried to allocate 2.00 GiB", True, False),
        ("call aclrtMalloc failed, error code is 207001[ERROR]", True, False),
        ("NPU function error: aclrtSynchronizeStream, error code is 507015", False, True),
        ("error code is 507903, capture invalidated", False, False),
        ("error code is 207008, stream resources are insufficient", False, False),
        ("The size of tensor a (507015507) must match", False, False),
        ("ERR02200 [PID: 507123] the shape of x is wrong, error code is 107002", False, False),
        ("[PID: 207001] slice is out of range", False, False),
        ("NPU error,NPU error code is:507015 [PID: 12]", False, True),
        ("ACL stream synchronize failed, error code:507035", False, True),
        ("The process exits for this inner error, and the current working operator", False, True),
        ("UCE ERROR, \n[ERROR] (PID:1, Device:0, RankID:-1) ERR00100 PTA call", False, True),
        ("HBM MULTI BIT ECC ERROR, EZ9999: Inner Error!", False, True),
        ("NPU function error: SUSPECT MEM ERROR", False, True),
        ("SUSPECT REMOTE ERROR, ", False, True),
        ("HCCS LINK ERROR, ", False, True),
        ("NPU function error: UB LINK ERROR", False, True),
        ("HCCL OP RETRY FAILED, ", False, True),
        ("FORCE STOP.[ERROR] ERR00100 PTA call acl api failed", False, True),
    ],
)
def test_what_errors_mean(npus, text, memory, fault):
    """Lack of memory passes, a fault does not, all else is about the run."""
    vendor = open_npu(0)
    assert vendor.is_out_of_memory(RuntimeError(text)) is memory
    assert vendor.is_fault(RuntimeError(text)) is fault


def test_lack_of_memory_is_an_error_of_its_own_class(npus):
    """CANN words it in other ways; torch_npu knows them."""
    assert open_npu(0).is_out_of_memory(torch.OutOfMemoryError("EL0004: Failed to allocate"))


def test_the_codes_are_those_of_a_fault():
    """507xxx, but for the one that only ends a capture."""
    found = [
        code
        for code in (507000, 507014, 507903)
        if re.search(torch_npu._FAULT, f"error code is {code}")
    ]
    assert found == [507000, 507014]
