"""A file's JSON object, or an error that names the file."""

import pytest

from ge_backend.errors import ModelError
from ge_backend.model.files.json_file import read_json


def test_an_object_is_read(tmp_path):
    """In UTF-8."""
    (tmp_path / "a.json").write_text('{"a": "é"}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"a": "é"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "expected a JSON object"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        (f'{{"a": "{"x" * 100}"}}', "larger than 99 bytes"),
    ],
    ids=range(4),
)
def test_what_is_none_is_refused(tmp_path, text, why):
    """With the file's name."""
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=f"^{path}: {why}"):
        read_json(path, most_bytes=10**6 if len(text) > 1000 else 99)


def test_a_missing_one_is_told_with_what_belongs_there(tmp_path):
    """A folder was copied in part."""
    with pytest.raises(ModelError, match=r"^no a.json in .*; a checkpoint folder has config"):
        read_json(tmp_path / "a.json")
