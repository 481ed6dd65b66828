"""The folder of a model, as the benchmarks write it."""

import json

from benchmarks.model_folder import write_model


def test_a_model_has_its_configuration_and_what_it_runs(tmp_path):
    """Parameters come after the rest; a model of the null device has its graph."""
    version = write_model(tmp_path / "m", 'backend: "ge"\n', {"threads": 1}, graph={"inputs": []})
    assert json.loads((version / "model.null").read_text()) == {"inputs": []}
    assert (tmp_path / "m" / "config.pbtxt").read_text() == (
        'backend: "ge"\nparameters { key: "threads" value { string_value: "1" } }\n'
    )


def test_the_first_file_of_code_is_the_model(tmp_path):
    """What it imports lies beside it under its own name."""
    version = write_model(tmp_path / "m", "", code=["one_forward", "forward"])
    assert sorted(path.name for path in version.iterdir()) == ["forward.py", "model.py"]
    assert "TritonPythonModel" in (version / "model.py").read_text()
