"""What the host says of an instance is read once, whatever the model is."""

from pathlib import Path

import pytest

from builders.host_config import instance_of
from ge_backend.errors import ConfigError
from ge_backend.executor.process.reloads import note_reload


def test_it_is_read_from_what_the_host_says(pb_utils, monkeypatch, tmp_path):
    """The folder is the version's, and reloads that were noted are told from the first on."""
    note_reload(tmp_path, "m")
    monkeypatch.setenv("GE_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: "/models/m/1")
    instance = instance_of({"name": "m", "max_batch_size": 4})
    assert (instance.name, instance.config.name, instance.config.version) == ("m_0_0", "m", "1")
    assert instance.config.directory == Path("/models/m/1")
    instance.note_restart("cpu")
    counts = instance.recorder.drain()
    assert counts["ge_model_heals", ()] == 1
    assert counts["ge_executor_restarts_total", (("device", "cpu"),)] == 1


def test_a_host_with_numpy_2_is_refused_before_anything_is_read(pb_utils, monkeypatch):
    """Unless it is allowed; what its stub would hand over is wrong."""
    from ge_backend.host import instance

    monkeypatch.setattr(instance, "check_numpy", _refuse)
    with pytest.raises(ConfigError, match="not this numpy"):
        instance_of({"name": "m", "parameters": {"unknown": {"string_value": "1"}}})


def _refuse(*, allow_2):
    raise ConfigError("not this numpy")
