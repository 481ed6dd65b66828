"""Names of tensors in an OpenVINO IR, read without OpenVINO."""

import pytest

from ge_backend.errors import ModelError
from ge_backend.model.files.ir_file import ir_aliases, ir_quantises

IR = """<?xml version="1.0"?><net name="Model0" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="?,4" element_type="f32" />
<output><port id="0" precision="FP32" names="/Cast_output_0,x"><dim>-1</dim></port></output></layer>
<layer id="1" name="Relu_3" type="ReLU" version="opset1">
<output><port id="1" precision="FP32" names="y"><dim>-1</dim></port></output></layer>
</layers></net>"""


def test_other_names_of_a_tensor_are_told_from_its_own(tmp_path):
    """What no tensor is called is none of either."""
    path = tmp_path / "m.xml"
    path.write_text(IR)
    asked = {"x", "/Cast_output_0", "y", "output_0"}
    assert ir_aliases(path, asked) == {"/Cast_output_0", "y"}
    assert ir_aliases(path, {"x"}) == frozenset()


def test_rounding_to_steps_is_seen(tmp_path):
    """By the type of a layer, not by its name."""
    path = tmp_path / "m.xml"
    path.write_text(IR.replace("Relu_3", "FakeQuantize"))
    assert not ir_quantises(path)
    path.write_text(IR.replace('type="ReLU"', 'type="FakeQuantize"'))
    assert ir_quantises(path)


def test_a_file_that_is_not_there(tmp_path):
    """Is named."""
    with pytest.raises(ModelError, match=r"m\.xml cannot be read"):
        ir_aliases(tmp_path / "m.xml", {"x"})
