"""What a fused model takes over of its ensemble."""

import os

import pytest

from ge_backend.config.model_folder import read_folder
from ge_backend.serving.fused import fused_document

STEP = 'backend: "ge" max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }'
OUTPUT = 'output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }'
ENSEMBLE = f"""
platform: "ensemble" max_batch_size: 4
input {{ name: "x" data_type: TYPE_FP32 dims: [ 2 ] }} {OUTPUT}
ensemble_scheduling {{ step {{ model_name: "step" model_version: -1
  input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "y" }} }} }}
"""
FUSED = 'backend: "ge" parameters { key: "fuse" value { string_value: "whole" } }'


@pytest.mark.parametrize(
    ("own", "labels"), [("", "../whole/labels.txt"), (OUTPUT, "labels.txt")], ids=["taken", "own"]
)
def test_labels_are_where_the_configuration_that_names_them_is(tmp_path, own, labels):
    """The host looks for the file in the folder of the model that it loads."""
    configs = {"step": f"{STEP} {OUTPUT}", "whole": ENSEMBLE, "fused": f"{FUSED} {own}"}
    for name, config in configs.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(config)
    folder = read_folder(tmp_path / "fused")
    document = fused_document(dict(folder.document), folder.config(os.environ))
    assert [output["label_filename"] for output in document["output"]] == [labels]
