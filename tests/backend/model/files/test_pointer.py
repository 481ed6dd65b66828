"""A pointer in a file's place is told by its first words."""

import pytest

from ge_backend.errors import ModelError
from ge_backend.model.files.pointer import refuse_pointer


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 9\n", "git lfs pull"),
        (b"/annex/objects/SHA256E-s9--aa.onnx\n", "git annex get"),
    ],
)
def test_a_pointer_is_refused_with_what_brings_the_file(tmp_path, content, told):
    """Whatever its name says."""
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=rf"model\.onnx is a pointer of .*run {told}"):
        refuse_pointer(tmp_path / "model.onnx")


def test_anything_else_passes(tmp_path):
    """An empty file, and one that is not there, are others' to refuse."""
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("version 1")
    for name in ("empty", "text", "missing"):
        refuse_pointer(tmp_path / name)
