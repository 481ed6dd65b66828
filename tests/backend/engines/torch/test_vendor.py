"""One implementation over `torch.cuda` and `torch.npu`; for the latter see test_npu.py."""

import contextlib
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from builders.api_use import uses  # noqa: E402
from ge_backend.engines.torch import cuda as torch_cuda  # noqa: E402
from ge_backend.engines.torch import vendor as torch_vendor  # noqa: E402
from ge_backend.engines.torch.vendor import Vendor  # noqa: E402

USED = sorted(
    uses(Path(torch_cuda.__file__), "torch.cuda") | uses(Path(torch_vendor.__file__), "self.api")
)
MADE = {
    "Stream": torch.cuda.Stream,
    "Event": torch.cuda.Event,
    "CapturedGraph": torch.cuda.CUDAGraph,
}


@pytest.mark.parametrize("use", USED, ids=[use.name for use in USED])
def test_torch_cuda_has_every_name_and_takes_what_it_is_given(use):
    """A build for CPUs has the names, too."""
    found = torch.cuda
    for part in use.name.split("."):
        found = getattr(found, part)
    if use.positional >= 0:
        given = dict.fromkeys(use.keywords)
        inspect.signature(found).bind(*range(use.positional), **given)


@pytest.mark.parametrize("protocol", MADE)
def test_objects_have_the_methods_that_are_used(protocol):
    """Streams, events and graphs take what our protocols say."""
    for name, ours in inspect.getmembers(getattr(torch_vendor, protocol), inspect.isfunction):
        if not name.startswith("_"):
            theirs = inspect.signature(getattr(MADE[protocol], name))
            assert list(inspect.signature(ours).parameters) == list(theirs.parameters)


class Api:
    """Notes what it is asked."""

    def __init__(self):
        self.asked = []

    @contextlib.contextmanager
    def graph(self, graph, **given):
        self.asked.append((graph, given))
        yield
        self.asked.append("ended")

    def mem_get_info(self, device):
        return 3, 7

    def get_device_name(self, device):
        return f"what {device} is"

    def memory_allocated(self, device):
        return 5


@pytest.fixture
def ended():
    return []


@pytest.fixture
def vendor(ended):
    return Vendor(
        device="cpu:3",
        enter=lambda: None,
        module=Api(),
        graph=lambda: "graph",
        end_pool=lambda index, pool: ended.append((index, pool)),
        compile=lambda module: None,
        no_memory=re.compile("no room"),
        fault=re.compile("broke"),
    )


def test_a_capture_holds_what_the_work_queues(vendor):
    """It ends before the graph is given out, and other threads may use the device meanwhile."""
    captured = vendor.capture(lambda: vendor.api.asked.append("work"), pool="pool", stream="stream")
    given = {"pool": "pool", "stream": "stream", "capture_error_mode": "thread_local"}
    assert vendor.api.asked == [("graph", given), "work", "ended"]
    assert captured == "graph"


@pytest.mark.parametrize("properly", [True, False])
def test_a_failed_capture_leaves_nothing_behind(vendor, ended, properly):
    """The allocator is told that it has ended, and the graph to which it points stays."""

    def fail():
        raise RuntimeError("operation not permitted when stream is capturing")

    def refuse(index, pool):
        raise RuntimeError("not currently recording to this pool")

    if properly:  # ended by torch itself, so there is nothing to end
        vendor = dataclasses.replace(vendor, end_pool=refuse)
    with pytest.raises(RuntimeError, match="not permitted"):
        vendor.capture(fail, pool="pool", stream="stream")
    assert vendor.abandoned == ["graph"]
    assert ended == ([] if properly else [(3, "pool")])


def test_a_chip_that_captures_nothing_is_not_asked_to(vendor, ended):
    """A capture that fails may cost memory for ever; the caller goes on as after one."""
    vendor = dataclasses.replace(vendor, captures=False)
    with pytest.raises(RuntimeError, match="cpu:3 captures no graphs"):
        vendor.capture(lambda: None, pool="pool", stream="stream")
    assert (vendor.module.asked, vendor.abandoned, ended) == ([], [], [])


def test_figures_are_of_its_own_device(vendor):
    """Free and total memory, what tensors have, and what it is."""
    memory = vendor.memory()
    assert vendor.chip() == "what cpu:3 is"
    assert (memory.free_bytes, memory.total_bytes, vendor.allocated_bytes()) == (3, 7, 5)


def test_device_memory_is_bytes_on_the_device(vendor):
    """Its content is undefined."""
    block = dataclasses.replace(vendor, device="meta").empty(5)
    assert (block.device.type, block.dtype, tuple(block.shape)) == ("meta", torch.uint8, (5,))


def test_every_use_enters_the_device_first(vendor):
    """A thread begins on device 0, where whatever asks for a stream would open that."""
    entered = []
    other = dataclasses.replace(vendor, device="meta", enter=lambda: entered.append("entered"))
    for use in (other.memory, other.allocated_bytes, lambda: other.empty(5)):
        use()
    assert entered == ["entered"] * 3


def test_errors_mean_what_the_vendor_says(vendor):
    """By what is found in their messages."""
    assert vendor.is_out_of_memory(RuntimeError("there is no room"))
    assert vendor.is_fault(RuntimeError("it broke"))
    assert not vendor.is_fault(RuntimeError("there is no room"))
