"""A model folder on the device that computes nothing, and a cache of this test's own."""

import json

import pytest

from fixtures.processes import processes
from ge_tools.main import main

__all__ = ["processes"]

CONFIG = """\
# A model for tests.
backend: "ge"
max_batch_size: 8
parameters { key: "device" value { string_value: "null" } }
parameters { key: "buckets.rows" value { string_value: "1,8" } }
parameters { key: "buckets.length" value { string_value: "16,64" } }  # a guess
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where costs and traffic are kept."""
    monkeypatch.setenv("GE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GE_DEVICE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path, cache):
    """Return a function that writes a model, `tiny`, whose runs take as long as it says."""

    def write(config=CONFIG, dims=("batch", "length"), **behaviour):
        folder = tmp_path / "repository" / "tiny"
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(config)
        graph = {
            "inputs": [{"name": "x", "dtype": "FP32", "dims": list(dims)}],
            "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"]}],
            "static_shapes": True,
            **behaviour,
        }
        (folder / "1" / "model.null").write_text(json.dumps(graph))
        return folder

    return write


@pytest.fixture
def ge_backend(capsys):
    """Return a function that runs a command line and gives (code, stdout, stderr)."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
