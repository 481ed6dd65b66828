"""A file that a configuration names lies in the model's folder."""

from pathlib import Path

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.config.inside import inside

FOLDER = Path("/models/m")


@pytest.mark.parametrize("name", ["a.txt", "sub/a.txt", "sub/../a.txt", "./a.txt"])
def test_names_within_the_folder_are_files_there(name):
    """Folders in it, too."""
    assert inside(FOLDER, name, "x").is_relative_to(FOLDER)


@pytest.mark.parametrize("name", ["../other/1/model.onnx", "/etc/passwd", "sub/../../m2/a"])
def test_names_that_leave_it_are_refused(name):
    """By steps upwards or as an absolute path; the setting is named."""
    with pytest.raises(
        ConfigError, match=r"default_model_filename is .* leaves the model's folder"
    ):
        inside(FOLDER, name, "default_model_filename")
