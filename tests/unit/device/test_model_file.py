"""The model file of a version folder is found, or its absence is explained."""

import pytest

from ge_backend.device.model_file import find_model_file
from ge_backend.errors import ModelError


def test_known_names_in_order(tmp_path):
    """ONNX comes before torch when a folder holds both and nothing is named."""
    (tmp_path / "model.pt2").touch()
    assert find_model_file(tmp_path, "").name == "model.pt2"
    (tmp_path / "model.onnx").touch()
    assert find_model_file(tmp_path, "").name == "model.onnx"


def test_default_model_filename_decides(tmp_path):
    """A name in config.pbtxt is taken, and nothing else."""
    (tmp_path / "model.onnx").touch()
    (tmp_path / "other.onnx").touch()
    assert find_model_file(tmp_path, "other.onnx").name == "other.onnx"
    with pytest.raises(ModelError, match=r"looked for third.onnx, found model.onnx, other.onnx"):
        find_model_file(tmp_path, "third.onnx")


def test_empty_folder_is_explained(tmp_path):
    """The error lists what was looked for."""
    with pytest.raises(ModelError, match=r"looked for model.onnx.*found nothing"):
        find_model_file(tmp_path, "")
