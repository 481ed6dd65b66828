"""Folders of models."""

import pytest

from ge_backend.openai.folders import find_folder


def test_the_first_repository_that_has_a_model_is_taken(tmp_path):
    """A folder without a configuration is no model."""
    first, second, third = (tmp_path / name for name in "abc")
    (first / "m").mkdir(parents=True)
    for repository in (second, third):
        (repository / "m").mkdir(parents=True)
        (repository / "m" / "config.pbtxt").touch()
    assert find_folder((first, second, third), "m") == second / "m"


@pytest.mark.parametrize("name", ["n", "../b/m", ".", "", "m/1"])
def test_a_name_is_no_path(tmp_path, name):
    """What is not directly in a repository is not found."""
    for folder in (tmp_path / "b" / "m", tmp_path / "a" / "m" / "1", tmp_path / "a"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").touch()
    assert find_folder((tmp_path / "a",), name) is None
