"""The checks for accelerators, on one that is not there."""

import pytest

torch = pytest.importorskip("torch")

from tools.probes import device_checks  # noqa: E402
from tools.probes.device_checks import CHECKS, CheckFailed, prepare  # noqa: E402
from tools.probes.gpu import run_checks  # noqa: E402

from fakes.torch_vendor import FakeVendor  # noqa: E402
from ge_backend.engines.kinds.cuda import CudaDevice  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The graphs are tiny: threads would only wait for each other."""
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(former)


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    return prepare(CudaDevice(FakeVendor()), tmp_path_factory.mktemp("checks"))


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_the_shared_implementation_passes(subject, check):
    """What is asked of a GPU holds where streams run as late as they may."""
    check(subject)


def test_a_wrong_answer_fails(subject, monkeypatch):
    """The checks can fail."""
    monkeypatch.setattr(device_checks, "TOLERANCE", -1.0)
    with pytest.raises(CheckFailed, match=r"differs by .*, allowed is -1e"):
        CHECKS[0](subject)


def test_a_device_that_captures_nothing_fails(subject):
    """Falling back is right for a server, and a finding for a check."""
    subject.device._vendor.capture_errors = [RuntimeError("no")]
    with pytest.raises(CheckFailed, match="captured shapes: 0, expected 4"):
        CHECKS[0](subject)


def test_one_failure_does_not_stop_the_others():
    """Each has its line, and the number of failures is returned."""

    def fails(subject):
        raise CheckFailed("because")

    def holds(subject):
        pass

    said = []
    assert run_checks(CudaDevice(FakeVendor()), (fails, holds), said.append) == 1
    assert said[0] == "FAIL  fails: CheckFailed: because"
    assert said[1].startswith("PASS  holds")
