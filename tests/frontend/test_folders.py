"""Folders of models, and the adapters in them that the API lists."""

import json

import pytest

from builders.closed import closed
from ge_openai.folders import (
    adapter_names,
    checkpoint_folder,
    find_folder,
    read_config,
    version_folder,
)


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


def test_the_adapters_of_a_model_are_those_of_its_list(tmp_path):
    """None of a list that cannot be read, nor of a model that is unknown here."""
    folder = write(tmp_path, "m")
    assert adapter_names([tmp_path], "m") == adapter_names([tmp_path], "n") == []
    (folder / "multi_lora.json").write_text('{"poet": "/a", "pirate": "/b"}')
    assert adapter_names([tmp_path / "none", tmp_path], "m") == ["pirate", "poet"]
    for broken in ("{", "[7]", "7"):
        (folder / "multi_lora.json").write_text(broken)
        assert adapter_names([tmp_path], "m") == []
    write(tmp_path, "other", 'backend: "python"')
    assert adapter_names([tmp_path], "other") == []


def test_a_folder_that_we_may_not_look_into_has_no_adapters(tmp_path):
    """The server, which may, serves them all the same."""
    (write(tmp_path, "m") / "multi_lora.json").write_text('{"pirate": "/b"}')
    assert adapter_names([tmp_path], "m") == ["pirate"]
    with closed(tmp_path / "m"):
        assert adapter_names([tmp_path], "m") == []


def test_a_model_may_have_versions_alone(tmp_path):
    """The server completes its configuration, and takes the latest version."""
    for version in ("1", "2", "notes"):
        (tmp_path / "m" / version).mkdir(parents=True)
    assert find_folder([tmp_path], "m") == tmp_path / "m"
    assert version_folder(tmp_path / "m", read_config(tmp_path / "m")) == tmp_path / "m" / "2"


def arguments(folder, **given):
    (folder / "model.json").write_text(json.dumps(given))
    return folder


def test_a_checkpoint_lies_where_vllms_arguments_say(tmp_path):
    """Or in the version folder; its tokenizer may be another's."""
    assert checkpoint_folder(tmp_path) == tmp_path
    for name in ("model", "tokenizer"):
        (tmp_path / name).mkdir()
    named = {name: str(tmp_path / name) for name in ("model", "tokenizer")}
    assert checkpoint_folder(arguments(tmp_path, model=named["model"])) == tmp_path / "model"
    assert checkpoint_folder(arguments(tmp_path, **named)) == tmp_path / "tokenizer"


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_a_model_of_the_hub_is_where_it_was_downloaded_to(tmp_path, monkeypatch, variable):
    """Its main branch, or the revision that is asked for."""
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    hub = tmp_path / "hub" if variable == "HF_HOME" else tmp_path
    model = hub / "models--facebook--opt-125m"
    for commit in ("aa", "bb"):
        (model / "snapshots" / commit).mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("aa")
    given = {"model": "facebook/opt-125m"}
    assert checkpoint_folder(arguments(tmp_path, **given)) == model / "snapshots" / "aa"
    folder = checkpoint_folder(arguments(tmp_path, revision="bb", **given))
    assert folder == model / "snapshots" / "bb"
    with pytest.raises(ValueError, match=r"names 'facebook/opt-125m', and .*cc is no folder here"):
        checkpoint_folder(arguments(tmp_path, revision="cc", **given))


@pytest.mark.parametrize("given", ["{", "[]", "{}", '{"model": 7}', '{"model": "/nowhere"}'])
def test_arguments_that_name_no_folder_are_told(tmp_path, given):
    """As a value that is wrong, whatever they are."""
    (tmp_path / "model.json").write_text(given)
    with pytest.raises(ValueError, match=r"model|Expecting"):
        checkpoint_folder(tmp_path)
