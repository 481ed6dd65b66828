from pathlib import Path

import pytest

from ge_backend.errors import ConfigError
from ge_tools.model.repository import (
    CONFIG,
    backend_of,
    is_ours,
    model_folders,
    refused_folders,
)


def test_models_are_the_folders_with_a_configuration_in_order(tmp_path):
    """Other folders and files of a repository are none."""
    for name in ("b", "a", "notes"):
        (tmp_path / name).mkdir()
    for name in ("b", "a"):
        (tmp_path / name / "config.pbtxt").touch()
    (tmp_path / "README.md").touch()

    assert model_folders(tmp_path) == [tmp_path / "a", tmp_path / "b"]


def test_a_folder_without_models_is_refused(tmp_path):
    """It says what a repository looks like."""
    with pytest.raises(ConfigError, match=r"has no models; expected a folder of folders"):
        model_folders(tmp_path)
    with pytest.raises(ConfigError, match=r"nowhere is not a folder"):
        model_folders(tmp_path / "nowhere")


def test_a_model_is_no_repository(tmp_path):
    """The folder above it is."""
    (tmp_path / "config.pbtxt").touch()
    with pytest.raises(ConfigError, match=r"is one model; expected the folder above it"):
        model_folders(tmp_path)


def test_folders_without_a_configuration_are_refused(tmp_path):
    """As the host does, unless one of its own backends serves what is in them."""
    for name, file in (("plain", "1/model.py"), ("forgotten", "1/model.onnx"), ("a", CONFIG)):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / file).touch()
    (tmp_path / "README.md").touch()
    ((name, reason),) = refused_folders(tmp_path)
    assert name == "forgotten"
    assert "has no config.pbtxt, and Triton takes each folder for a model; expected one" in reason


def test_folders_that_may_not_be_entered_are_told(tmp_path, monkeypatch):
    """And those after them are looked at; the tests' own user may enter any."""
    for name in ("a", "b"):
        (tmp_path / name / "1").mkdir(parents=True)
    exists = Path.exists

    def refuse(self):
        if self.parent.name == "a":
            raise PermissionError(13, "Permission denied", str(self))
        return exists(self)

    monkeypatch.setattr(Path, "exists", refuse)
    refused = dict(refused_folders(tmp_path))
    assert "a cannot be read: [Errno 13] Permission denied" in refused["a"]
    assert "has no config.pbtxt" in refused["b"]


@pytest.mark.parametrize("config", ['platform: "ensemble"', 'backend: "python"'])
def test_a_model_of_no_version_is_refused(tmp_path, config):
    """Whosever it is; an ensemble's folder may be empty."""
    (tmp_path / CONFIG).write_text(config)
    with pytest.raises(ConfigError, match="has no version folder; expected a folder 1 in it"):
        is_ours(tmp_path)
    (tmp_path / "1").mkdir()
    assert not is_ours(tmp_path)


@pytest.mark.parametrize(
    ("config", "backend"),
    [
        ('backend: "gee"', "gee"),
        ("", "onnxruntime"),
        ('platform: "pytorch_libtorch"', "pytorch"),
        ('default_model_filename: "model.py"', "python"),
        ('platform: "ensemble"', ""),
    ],
)
def test_the_backend_is_the_one_that_the_host_takes(tmp_path, config, backend):
    """By the file, where the configuration says nothing; an ensemble has none."""
    (tmp_path / CONFIG).write_text(config)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").touch()
    assert backend_of(tmp_path) == backend


def test_a_model_that_nothing_names_a_backend_for_is_refused(tmp_path):
    """As the host does with a folder of a language model, for example."""
    (tmp_path / CONFIG).touch()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "config.json").touch()
    with pytest.raises(ConfigError, match=r'config.pbtxt names no backend; write backend: "ge"'):
        backend_of(tmp_path)
