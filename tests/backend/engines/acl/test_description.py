"""What a model says about itself: its tensors and the shapes that it was compiled for."""

import pytest

from acl_simulator import Accumulate, BatchGears, DimsGears, Echo, ImageGears, Kept, Ranges, Static
from builders.npu import PAIRS, Npu, encoder
from ge_backend.engines.acl.description import read_description
from ge_backend.errors import ModelError, Unsupported


class Desk:
    """Descriptions of written models."""

    def __init__(self, npu):
        self.npu = npu
        self.models = npu.device._device.models
        self._open = []

    def read(self, graph, shapes, **options):
        path = self.npu.write(graph, shapes, **options)
        return self.read_file(path)

    def read_file(self, path):
        model = self.models.load(str(path), work=0, work_bytes=0, weights=0, weight_bytes=0)
        described = self.models.describe(model)
        self._open.append((model, described))
        return read_description(self.models, described, "model.om")

    def close(self):
        for model, described in self._open:
            self.models.forget(described)
            self.models.unload(model)


@pytest.fixture
def desk(tmp_path):
    npu = Npu(tmp_path)
    desk = Desk(npu)
    yield desk
    desk.close()
    npu.close()


def tensors(described):
    return [(t.name, t.dtype.name, t.dims, t.nbytes) for t in described]


def test_one_shape(desk):
    """Sizes are exact, and there is no choice."""
    described = desk.read(Echo("FP16"), Static({"x": (3, 5)}))
    assert tensors(described.inputs) == [("x", "FP16", (3, 5), 30)]
    assert tensors(described.outputs) == [("y", "FP16", (3, 5), 30)]
    assert described.gears.shapes == ({"x": (3, 5)},)
    assert (described.gear_at, described.gear_bytes, described.freely) == (-1, 0, False)


def test_batch_gears(desk):
    """Every batch size is a set of shapes; sizes are the largest one's."""
    described = desk.read(Echo(), BatchGears({"x": (-1, 5)}, [(1,), (8,)]))
    assert described.gears.shapes == ({"x": (1, 5)}, {"x": (8, 5)})
    assert tensors(described.inputs) == [("x", "FP32", (-1, 5), 160)]
    assert (described.gear_at, described.freely) == (1, False)
    assert described.gear_bytes > 0


def test_image_gears(desk):
    """Height and width, in the order in which they stand."""
    described = desk.read(Echo(), ImageGears({"x": (2, 3, -1, -1)}, [(8, 16), (4, 4)]))
    assert described.gears.shapes == ({"x": (2, 3, 8, 16)}, {"x": (2, 3, 4, 4)})


def test_dims_gears(desk):
    """A gear has the dims of all inputs, one behind the other."""
    described = desk.read_file(encoder(desk.npu.folder))
    assert [dict(shapes) for shapes in described.gears.shapes] == [
        dict.fromkeys(PAIRS, (1, 16)),
        dict.fromkeys(PAIRS, (4, 16)),
        dict.fromkeys(PAIRS, (4, 32)),
    ]
    assert described.gear_at == 2


def test_dims_gears_in_another_order_than_the_inputs(desk):
    """The one of `--input_shape`, as whoever compiled the file has listed them."""
    inputs = {"x": (-1, 3), "h": (-1, 3), "n": (-1, 1)}
    gears = [(2, 2, 2), (4, 4, 4)]
    described = desk.read(Accumulate(), DimsGears(inputs, gears, ("n", "x", "h")))
    assert [dict(shapes) for shapes in described.gears.shapes] == [
        {"x": (rows, 3), "h": (rows, 3), "n": (rows, 1)} for rows in (2, 4)
    ]


def test_free_dimensions(desk):
    """There are no gears; sizes are not known, limits are."""
    described = desk.read(Echo(), Ranges({"x": ((1, 8), 4, (1, -1))}))
    assert described.freely
    assert described.limits == {"x": (8, 4, -1)}
    assert tensors(described.inputs) == [("x", "FP32", (-1, 4, -1), 0)]


def test_an_output_that_varies_by_its_values(desk):
    """Fixed inputs do not make a fixed model."""
    described = desk.read(Kept(), Ranges({"x": (16,)}))
    assert described.freely
    assert described.outputs[0].dims == (-1,)


@pytest.mark.parametrize("of", ["input_dims", "output_dims"])
def test_a_number_of_dimensions_that_is_not_known(desk, monkeypatch, of):
    """ACL says -2: the tensor varies, and not only in its sizes."""
    path = desk.npu.write(Echo(), Ranges({"x": ((1, 8),)}))
    monkeypatch.setattr(desk.models, "input_dims", lambda *_: (4,))
    monkeypatch.setattr(desk.models, "output_dims", lambda *_: (4,))
    assert not desk.read_file(path).freely
    monkeypatch.setattr(desk.models, of, lambda *_: (-2,))
    assert desk.read_file(path).freely


def test_outputs_are_called_as_in_the_onnx_model(desk):
    """ATC writes `node:index:name`."""
    described = desk.read(Echo(), Static({"x": (1,)}), output_names="{node}:{index}:{name}")
    assert described.outputs[0].name == "y"
    plain = desk.read(Echo(), Static({"x": (1,)}), output_names="output_0_{node}_0")
    assert plain.outputs[0].name == "output_0_Echo_0_0"


@pytest.mark.parametrize(
    ("whole", "names"),
    [
        (["a:0:y", "b:0:z"], ["y", "z"]),
        (["a:0:y", "b:0:y"], ["a:0:y", "b:0:y"]),
        (["a:0", "b:1"], ["a:0", "b:1"]),
        (["a/b:c:12:x:0"], ["x:0"]),
    ],
)
def test_names_of_outputs(desk, monkeypatch, whole, names):
    """The short names, unless two would be the same."""
    path = desk.npu.write(Echo(), Static({"x": (1,)}))
    monkeypatch.setattr(desk.models, "output_names", lambda _: whole)
    monkeypatch.setattr(desk.models, "output_type", lambda *_: 0)
    monkeypatch.setattr(desk.models, "output_dims", lambda *_: (1,))
    monkeypatch.setattr(desk.models, "output_bytes", lambda *_: 4)
    assert [tensor.name for tensor in desk.read_file(path).outputs] == names


def test_a_type_that_triton_does_not_carry(desk, monkeypatch):
    """The message names the tensor and what to do."""
    path = desk.npu.write(Echo(), Static({"x": (1,)}))
    monkeypatch.setattr(desk.models, "input_type", lambda *_: 16)
    with pytest.raises(ModelError, match=r"'x' has the ACL data type 16.*cast"):
        desk.read_file(path)


def test_parameters_of_preprocessing_at_run_time(desk, monkeypatch):
    """Dynamic AIPP has an input that nobody fills."""
    path = desk.npu.write(Echo(), Static({"x": (1,)}))
    monkeypatch.setattr(desk.models, "input_names", lambda _: ["x", "ascend_dynamic_aipp_data"])
    with pytest.raises(Unsupported, match="dynamic AIPP"):
        desk.read_file(path)


def test_gears_are_chosen_through_an_input_wherever_it_stands(desk, monkeypatch):
    """It is found by its name."""
    path = desk.npu.write(Echo(), BatchGears({"x": (-1,)}, [(1,), (2,)]))
    names = ["ascend_mbatch_shape_data", "x"]
    monkeypatch.setattr(desk.models, "input_names", lambda _: names)
    described = desk.read_file(path)
    assert described.gear_at == 0
    assert [tensor.name for tensor in described.inputs] == ["x"]
