import pytest

from ge_backend.cli.model.repository import model_folders
from ge_backend.errors import ConfigError


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
        model_folders(tmp_path / "nowhere")
