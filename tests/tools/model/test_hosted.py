"""The host's own ensembles, looked at before it loads them; that it thinks so is a server's test."""

import pytest

from builders.hosted_ensembles import RIGHT, WRONG, Y, ensemble, step, write_hosted
from ge_backend.errors import ConfigError
from ge_tools.model.hosted import check_hosted

FILLED = """backend: "ge" input [ { name: "a" data_type: TYPE_FP32 dims: [ 9 ] } ]"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return write_hosted(tmp_path_factory.mktemp("hosted"))


@pytest.mark.parametrize("name", RIGHT)
def test_what_the_host_runs_is_right(repository, name):
    """Free and reshaped dims, batches on one side, and what a model's own code may add included."""
    check_hosted(repository / name)


@pytest.mark.parametrize("name", WRONG)
def test_what_the_host_refuses_is_told(repository, name):
    """By what does not fit."""
    with pytest.raises(ConfigError) as told:
        check_hosted(repository / name)
    assert WRONG[name][1] in str(told.value)


def write(repository, **configs):
    for name, text in configs.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)


def test_of_a_step_that_is_completed_from_its_file_nothing_is_said(tmp_path):
    """Its outputs are not listed, so neither are its names and dims all known."""
    write(tmp_path, filled=FILLED, e=ensemble(step("filled")))
    check_hosted(tmp_path / "e")


def test_a_step_of_ours_that_lists_its_tensors_has_no_others(tmp_path):
    """As loading it says, too."""
    write(tmp_path, filled=f"{FILLED} {Y}", e=ensemble(step("filled")))
    with pytest.raises(ConfigError, match="step 'filled' has no input 'x'; it has a"):
        check_hosted(tmp_path / "e")
