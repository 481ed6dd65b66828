"""The host's word for a model's folder is that of its file."""

from pathlib import Path

import pytest

from ge_backend.errors import ConfigError


@pytest.mark.parametrize(
    ("told", "filename"),
    [
        ("/models/m/1", ""),
        ("/models/m/1", "small.onnx"),
        ("/models/m/1/net", "net/small.onnx"),
        ("/models/m/1/1", "1/small.onnx"),
        ("/models/m/1/../../secret/1", "../../secret/1/model.onnx"),
    ],
)
def test_it_is_the_versions_whatever_the_file_is_called(pb_utils, monkeypatch, told, filename):
    """So a file in a folder of it is found, and one outside of it is refused by its name."""
    from ge_backend.host.version_folder import version_folder

    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: told)
    assert version_folder({"default_model_filename": filename}) == Path("/models/m/1")
    if not filename:
        assert version_folder({}) == Path("/models/m/1")


def test_a_folder_that_the_stubs_python_cannot_name_is_refused(pb_utils, monkeypatch, tmp_path):
    """That of 2.51 knows ASCII alone; here UTF-8 is what a name is not in."""
    from ge_backend.host.version_folder import version_folder

    hidden = tmp_path / "link"
    hidden.symlink_to(b"\xff".decode(errors="surrogateescape"))
    for told in ("/models/\ud800/1", str(hidden)):
        monkeypatch.setattr(pb_utils, "get_model_dir", lambda told=told: told)
        with pytest.raises(ConfigError, match=r"cannot be opened: .* paths in utf-8; rename what"):
            version_folder({})
