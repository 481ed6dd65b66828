"""Chat templates in folders that are named for models."""

import json

import pytest

from builders.closed import closed
from ge_openai.api_error import ApiError
from ge_openai.template_folders import Templates


def write(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": text}))
    return folder


def test_another_template_is_read(tmp_path):
    """One in the same place, and one that comes to lie before it; the same is read once."""
    templates = Templates({"m": write(tmp_path, "first")})
    assert templates.of("m").render([]) == "first"
    assert templates.of("m") is templates.of("m")
    write(tmp_path, "replaced")
    assert templates.of("m").render([]) == "replaced"
    (tmp_path / "chat_template.jinja").write_text("a file of its own")
    assert templates.of("m").render([]) == "a file of its own"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(ApiError, match="no chat template"):
        templates.of("m")


@pytest.mark.parametrize("model", ["other", "../m", ".", ""])
def test_a_model_that_has_no_folder_says_how_to_name_one(tmp_path, model):
    """A name is no path."""
    templates = Templates({"m": write(tmp_path / "m", "x")})
    with pytest.raises(ApiError, match=f"not known here.*--tokenizer {model}=FOLDER") as caught:
        templates.of(model)
    assert caught.value.status == 400


def test_a_folder_that_we_may_not_look_into_is_named(tmp_path):
    """Whoever serves the API can open it to its user."""
    folder = write(tmp_path / "m", "x")
    with closed(folder), pytest.raises(ApiError, match=f"read: .*Permission denied: '{folder}"):
        Templates({"m": folder}).of("m")
