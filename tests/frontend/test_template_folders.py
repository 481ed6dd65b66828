"""Chat templates in the folders of models."""

import json

import pytest

from builders.closed import closed
from ge_openai.api_error import ApiError
from ge_openai.template_folders import Templates


def write(repository, model, version, text):
    folder = repository / model / version
    folder.mkdir(parents=True)
    (repository / model / "config.pbtxt").write_text('backend: "ge"')
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": text}))


def test_the_version_that_is_served_has_the_template(tmp_path):
    """Of all repositories, the first that has the model."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    write(second, "m", "1", "old")
    write(second, "m", "12", "new")
    templates = Templates([first, second])
    assert templates.of("m").render([]) == "new"
    assert templates.of("m") is templates.of("m")


def test_another_template_is_read(tmp_path):
    """A new version's, one in the same place, and one that comes to lie before it."""
    write(tmp_path, "m", "1", "first")
    templates = Templates([tmp_path])
    assert templates.of("m").render([]) == "first"
    config = tmp_path / "m" / "1" / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "replaced"}))
    assert templates.of("m").render([]) == "replaced"
    (tmp_path / "m" / "1" / "chat_template.jinja").write_text("a file of its own")
    assert templates.of("m").render([]) == "a file of its own"
    write(tmp_path, "m", "2", "first")
    assert templates.of("m").render([]) == "first"
    (tmp_path / "m" / "2" / "tokenizer_config.json").unlink()
    with pytest.raises(ApiError, match="no chat template"):
        templates.of("m")


@pytest.mark.parametrize("model", ["other", "../b/m", ".", ""])
def test_a_model_that_is_not_there_says_how_to_name_its_folder(tmp_path, model):
    """A name is no path."""
    write(tmp_path / "b", "m", "1", "x")
    (tmp_path / "a").mkdir()
    with pytest.raises(ApiError, match="--model-repository"):
        Templates([tmp_path / "a"]).of(model)
    (tmp_path / "a" / "n").mkdir()
    (tmp_path / "a" / "n" / "config.pbtxt").write_text('backend: "python"')
    with pytest.raises(ApiError, match="cannot be read"):
        Templates([tmp_path / "a"]).of("n")


def test_a_folder_that_we_may_not_look_into_is_named(tmp_path):
    """Whoever serves the API can open it to its user."""
    write(tmp_path, "m", "1", "x")
    folder = tmp_path / "m"
    with closed(folder), pytest.raises(ApiError, match=f"read: .*Permission denied: '{folder}"):
        Templates([tmp_path]).of("m")


def test_a_folder_that_is_named_goes_before(tmp_path):
    """Where the repositories have the model, and where they do not."""
    write(tmp_path, "m", "1", "of the repository")
    write(tmp_path, "other", "1", "named")
    templates = Templates([tmp_path], named={"m": tmp_path / "other" / "1"})
    assert templates.of("m").render([]) == "named"
