"""Tensors on their way to the device and back; whole runs are in test_npu.py."""

import numpy as np
import pytest

from ge_backend.device.resident.buffers import Bound, BoundTensor
from ge_backend.engines.acl.description import Tensor
from ge_backend.engines.acl.transfer import Transfer, check_outputs, checked_shapes, num_bytes
from ge_backend.errors import GraphFailed, OutOfMemory
from ge_backend.tensors import DATA_TYPES


def tensor(name, dtype="FP32", nbytes=64, dims=(-1, -1)):
    return Tensor(name=name, dtype=DATA_TYPES[dtype], dims=dims, nbytes=nbytes)


def test_there_and_back(sim, runtime):
    """What was uploaded can be downloaded from another place on the device."""
    transfer = Transfer(runtime, [tensor("x")], [tensor("y")], "a graph")
    stream = runtime.create_stream()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = x.T.copy().T  # not contiguous
    transfer.upload({"x": given}, stream)
    given[:] = 0  # the caller may reuse it at once
    transfer.download({"y": (2, 3)}, stream, [transfer.inputs["x"].device])
    runtime.synchronise(stream, 1000)
    place = np.zeros((2, 3), np.float32)
    for places in ({}, {"y": place}, {"y": np.zeros((3, 2), np.float32)}, {"y": place.astype(int)}):
        (result,) = transfer.results({"y": (2, 3)}, places).values()
        assert np.array_equal(result, x)
        assert (result is place) == (places.get("y") is place)
    transfer.close()
    assert sim.allocations() == []


def test_tensors_of_no_elements_are_not_copied(sim, runtime):
    """ACL takes no copy of 0 bytes."""
    transfer = Transfer(runtime, [tensor("x", nbytes=0)], [tensor("y", nbytes=0)], "a graph")
    transfer.upload({"x": np.zeros((0, 4), np.float32)}, 0)
    transfer.download({"y": (3, 0)}, 0)
    assert transfer.results({"y": (3, 0)}, {})["y"].shape == (3, 0)
    assert sim.calls["rt.memcpy_async"] == 0


def test_a_result_is_the_callers_own(runtime):
    """The next run overwrites the slot, and not the result."""
    transfer = Transfer(runtime, [], [tensor("y")], "a graph")
    transfer.outputs["y"].bytes[:] = 1
    result = transfer.results({"y": (4,)}, {})["y"].view(np.uint8)
    transfer.outputs["y"].bytes[:] = 2
    assert (result == 1).all()


def test_outputs_without_room_give_the_inputs_back(sim, runtime):
    """Half a transfer leaves nothing."""
    sim.fail("rt.malloc", 207001, after=1)
    with pytest.raises(OutOfMemory, match="the outputs of a graph"):
        Transfer(runtime, [tensor("x")], [tensor("y")], "a graph")
    assert sim.allocations() == []


def test_bytes_of_a_shape():
    """Elements times their size; a scalar has one."""
    assert num_bytes(tensor("x", "FP16"), (3, 5)) == 30
    assert num_bytes(tensor("x", "INT64"), ()) == 8


def test_shapes_of_the_right_inputs():
    """Names and types are the model's; the shapes are returned."""
    arrays = {"x": np.zeros((2, 3), np.float32)}
    assert checked_shapes([tensor("x")], arrays, "m") == {"x": (2, 3)}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "takes the inputs x; got none"),
        ({"z": np.zeros((2, 3), np.float32)}, "takes the inputs x; got z"),
        ({"x": np.zeros((2, 3))}, r"'x' is FP32 \[-1, -1\]; got float64 \[2, 3\]"),
        ({"x": np.zeros(3, np.float32)}, r"got float32 \[3\]"),
    ],
)
def test_other_inputs_are_refused(arrays, words):
    """Before anything is copied."""
    with pytest.raises(GraphFailed, match=f"^m: .*{words}|^m {words}"):
        checked_shapes([tensor("x")], arrays, "m")


def test_what_lies_on_the_device_is_checked_like_the_rest():
    """Its bytes would be read as something that they are not."""
    item = BoundTensor(dtype=DATA_TYPES["FP64"], shape=(2, 3), copies=())
    assert checked_shapes([tensor("x", "FP64")], {}, "m", Bound(inputs={"x": item})) == {
        "x": (2, 3)
    }
    with pytest.raises(GraphFailed, match=r"'x' is FP32 \[-1, -1\]; got float64 \[2, 3\]"):
        checked_shapes([tensor("x")], {}, "m", Bound(inputs={"x": item}))


def test_outputs_of_another_type_do_not_stay():
    """Their bytes are as many as the type says, and end elsewhere."""
    item = BoundTensor(dtype=DATA_TYPES["FP64"], shape=(2, 3), copies=())
    bound, shapes = Bound(outputs={"y": item}), {"y": (2, 3)}
    check_outputs([tensor("y", "FP64"), tensor("z")], shapes, "m", bound)
    with pytest.raises(GraphFailed, match="'y', which stays on the device, is FP32, and FP64 is"):
        check_outputs([tensor("y"), tensor("z")], shapes, "m", bound)
