"""Arrays to tensors and back; what a run as a whole does is tested with its graphs."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ge_backend.engines.torch.codec import TorchCodec  # noqa: E402
from ge_backend.engines.torch.program import Program  # noqa: E402
from ge_backend.errors import ConfigError, GraphFailed  # noqa: E402
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec  # noqa: E402

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def codec(dtype="FP32", *, declared=True, precision="origin", writes=False, told=False):
    spec = TensorSpec(name="x", dtype=DATA_TYPES[dtype], dims=(-1, 3), axes=("batch", ""))
    specs = (spec,) if declared else ()
    program = Program(
        module=torch.nn.Linear(3, 3),
        signature=Signature(inputs=specs, outputs=specs, axis_limits={}),
        call=dict,
        writes_in_place=writes,
        declared=told,
    )
    return TorchCodec(program, "model.pt2", precision)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({}, "takes the inputs x"),
        ({"y": ROWS}, "got y"),
        ({"x": ROWS[0]}, r"\(3,\)"),
        ({"x": ROWS.astype(np.float64)}, "float64"),
    ],
)
def test_refuses_what_is_not_declared(inputs, named):
    """Names, types and ranks are held against the signature."""
    with pytest.raises(GraphFailed, match=named):
        codec().check(inputs)


def test_a_file_without_a_signature_takes_anything():
    """Where nothing is declared nothing is refused here."""
    codec(declared=False).check({"y": ROWS[0]})


@pytest.mark.parametrize(("writes", "writeable"), [(False, True), (True, True), (False, False)])
def test_shares_memory_where_nobody_writes(writes, writeable):
    """The array is copied if the program writes to its inputs, or torch would have to warn."""
    given = ROWS.copy()
    given.flags.writeable = writeable
    tensor = codec(writes=writes).tensor("x", given)
    assert (tensor.data_ptr() == given.ctypes.data) is (writeable and not writes)


def test_bf16_is_a_view_of_bits():
    """BF16 comes and goes as uint16."""
    bits = np.array([[0x3F80, 0x4000, 0xBF80]], np.uint16)
    tensor = codec("BF16").tensor("x", bits)
    assert tensor.tolist() == [[1, 2, -1]]
    assert codec("BF16").array("x", tensor, None).tolist() == bits.tolist()


def test_a_precision_that_torch_does_not_compute_in_is_refused():
    """It names those that it does."""
    with pytest.raises(
        ConfigError, match=r"'fp32'; torch computes model\.pt2 in origin, bf16, fp16"
    ):
        codec(precision="fp32")


@pytest.mark.parametrize(("precision", "low"), [("origin", torch.float32), ("fp16", torch.float16)])
def test_lowers_floats_only(precision, low):
    """What is not a floating-point number keeps its type in every precision."""
    given = codec(precision=precision)
    assert given.lowered(torch.ones(2)).dtype == low
    assert given.lowered(torch.tensor([1])).dtype == torch.int64


def test_results_take_their_declared_type():
    """A result that was computed in a lower type comes back in the declared one."""
    result = torch.ones(2, 3, dtype=torch.float16)
    assert codec(precision="fp16").array("x", result, None).dtype == np.float32
    assert codec(declared=False, precision="fp16").output_type("x", result).name == "FP32"
    assert codec(declared=False).output_type("x", result).name == "FP16"


@pytest.mark.parametrize("shape", [(2, 3), (3, 2)])
def test_a_place_is_used_where_it_fits(shape):
    """A result goes into the caller's array only if that has its shape."""
    place = np.zeros(shape, np.float32)
    assert (codec().array("x", torch.ones(2, 3), place) is place) is (shape == (2, 3))


def test_types_that_triton_lacks_are_refused():
    """An undeclared complex output names itself."""
    with pytest.raises(GraphFailed, match=r"'x' of model\.pt2 is complex64"):
        codec(declared=False).output_type("x", torch.ones(1, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("dtype", "precision", "came", "fits"),
    [
        ("FP32", "origin", torch.float32, True),
        ("FP32", "origin", torch.float64, False),
        ("FP32", "bf16", torch.bfloat16, True),
        ("INT64", "bf16", torch.bfloat16, False),
        ("INT64", "origin", torch.int32, False),
    ],
)
def test_results_bear_out_what_config_pbtxt_says(dtype, precision, came, fits):
    """Where nothing else says a type, another one is refused as Triton's PyTorch backend does."""
    ours, result = codec(dtype, precision=precision, told=True), torch.zeros(2, dtype=came)
    if fits:
        assert ours.output_type("x", result).name == dtype
        return
    with pytest.raises(ConfigError, match=f"expects datatype TYPE_{dtype} for output 'x', model"):
        ours.output_type("x", result)
