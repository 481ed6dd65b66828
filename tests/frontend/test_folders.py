"""Folders of models, and the adapters in them that the API lists."""

import pytest

from builders.closed import closed
from ge_openai.folders import adapter_names, find_folder


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


def write(repository, model, config='backend: "ge"'):
    (repository / model / "1").mkdir(parents=True)
    (repository / model / "config.pbtxt").write_text(config)
    return repository / model / "1"


def test_the_adapters_of_a_model_are_those_beside_its_checkpoint(tmp_path):
    """Those of a list that cannot be read are left out, and all of a model that is unknown here."""
    folder = write(tmp_path, "m")
    assert adapter_names([tmp_path], "m") == adapter_names([tmp_path], "n") == []
    for name in ("poet", "pirate"):
        (folder / "adapters" / name).mkdir(parents=True)
        (folder / "adapters" / name / "adapter_config.json").write_text("{}")
    assert adapter_names([tmp_path / "none", tmp_path], "m") == ["pirate", "poet"]
    (folder / "multi_lora.json").write_text("{")
    assert adapter_names([tmp_path], "m") == ["pirate", "poet"]
    write(tmp_path, "other", 'backend: "python"')
    assert adapter_names([tmp_path], "other") == []


@pytest.mark.parametrize("of", ["m", "m/1/adapters"])
def test_a_folder_that_we_may_not_look_into_has_no_adapters(tmp_path, of):
    """The server, which may, serves them all the same."""
    folder = write(tmp_path, "m") / "adapters" / "pirate"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    assert adapter_names([tmp_path], "m") == ["pirate"]
    with closed(tmp_path / of):
        assert adapter_names([tmp_path], "m") == []
