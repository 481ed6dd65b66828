"""What a model's graph is loaded from."""

import pytest

from ge_backend.config.model import ModelConfig
from ge_backend.serving.connect import source_of


@pytest.mark.parametrize(("name", "told"), [("model.pt", ["x"]), ("model.pt2", [])])
def test_only_files_that_say_nothing_are_told_what_is_declared(tmp_path, name, told):
    """Two models with other names for the tensors of one file share it where it says them itself."""
    (tmp_path / name).write_bytes(b"")
    config = {"name": "m", "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]}
    ours = ModelConfig.read(config, directory=tmp_path, version="1", environment={})
    assert [spec.name for spec in source_of(ours, "cpu").declared.inputs] == told
