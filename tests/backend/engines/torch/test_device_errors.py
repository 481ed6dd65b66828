"""What torch's errors say of the device that they come from."""

import pytest

pytest.importorskip("torch")

from fakes.torch_vendor import FakeVendor
from ge_backend.engines.torch.device_errors import device_errors, meaning
from ge_backend.errors import (
    DeviceFault,
    GraphFailed,
    ModelError,
    OutOfMemory,
    Unsupported,
)

PATH = "/srv/models/m/1/model.pt2"
SAID = [("fake fault: gone", DeviceFault), ("fake out of memory: 7 bytes", OutOfMemory)]


@pytest.mark.parametrize(("text", "kind"), [*SAID, ("no kernel", GraphFailed)])
def test_an_error_is_of_the_device_or_of_the_run(text, kind):
    """By the vendor's word."""
    assert type(meaning(RuntimeError(text), PATH, FakeVendor())) is kind


def test_where_there_is_no_accelerator_only_memory_is_told_apart():
    """A CPU does not break."""
    assert type(meaning(RuntimeError("fake fault: gone"), PATH, None)) is GraphFailed
    assert type(meaning(MemoryError(), PATH, None)) is OutOfMemory


@pytest.mark.parametrize(("text", "kind"), SAID)
def test_clients_see_no_folders_and_the_log_sees_everything(text, kind, caplog):
    """Of a stack the first line is told."""
    found = str(meaning(RuntimeError(f"{text} at {PATH}\nstack"), PATH, FakeVendor()))
    assert found.endswith(f"{text} at model.pt2")
    assert "/srv" not in found
    assert "cpu" in found
    assert f"{text} at {PATH}\nstack" in caplog.text


@pytest.mark.parametrize(("text", "kind"), SAID)
def test_what_is_said_against_a_model_may_be_of_the_device(text, kind):
    """It was made of an error of torch's, perhaps by way of another of ours."""
    told = RuntimeError(text)
    failed, refused = GraphFailed("failed to run"), Unsupported("not this one")
    failed.__cause__, refused.__cause__ = told, failed
    for error in (told, failed, refused):
        with pytest.raises(kind, match=text), device_errors(PATH, FakeVendor()):
            raise error


@pytest.mark.parametrize("error", [ModelError("fake fault"), ValueError("two"), OutOfMemory("own")])
def test_all_other_errors_pass_as_they_are(error):
    """Those that are of no device, and those that say it already."""
    with pytest.raises(type(error)) as raised, device_errors(PATH, FakeVendor()):
        raise error
    assert raised.value is error
