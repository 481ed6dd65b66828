"""What every device does, whatever it is: the definition of `Device`."""

from __future__ import annotations

import pytest

from ge_backend.device.base import GraphSource
from ge_backend.errors import ModelError


def test_has_a_name_and_lanes(bench):
    """A device is called as it was opened, and at least one run can be in flight."""
    assert bench.device.name.partition(":")[0] == bench.kind or not bench.kind
    assert bench.device.lanes >= 1
    assert isinstance(bench.device.chip, str)


def test_reports_memory(bench):
    """Free memory is some of the total."""
    memory = bench.device.memory()
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_refuses_a_missing_file(bench):
    """A file that is not there is a ModelError that names it."""
    path = bench.folder / f"gone{bench.engine.suffix}"
    with pytest.raises(ModelError, match="gone"):
        bench.device.load(GraphSource(path=str(path), stamp=""))


@pytest.mark.parametrize("content", [b"", b"not a model", b"PK\x03\x04 half a zip"])
def test_refuses_a_corrupt_file(bench, content):
    """Bytes that are no model are a ModelError of one line that names the file."""
    path = bench.folder / f"broken{bench.engine.suffix}"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="broken") as caught:
        bench.device.load(GraphSource.of(path))
    assert "\n" not in str(caught.value)


def test_refuses_half_a_model(bench):
    """A model that was cut off in the middle is a ModelError, too."""
    path = bench.write("sums")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="sums"):
        bench.device.load(GraphSource.of(path))


def test_refuses_another_suffix(bench):
    """A kind of file that the device does not run is refused with the kinds that it does."""
    path = bench.folder / "model.tflite"
    path.touch()
    with pytest.raises(ModelError, match=rf"runs .*\{bench.engine.suffix}"):
        bench.device.load(GraphSource.of(path))
