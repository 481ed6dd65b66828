"""BF16 bit patterns cross a DLPack capsule and come back, and nothing is kept alive."""

import gc
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")


class FromTorch:
    """A host tensor whose capsule torch makes."""

    def __init__(self, tensor):
        self._tensor = tensor

    def name(self):
        return "x"

    def to_dlpack(self):
        return torch.utils.dlpack.to_dlpack(self._tensor)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_import_reads_what_torch_exports(shape):
    """Bits of a torch bfloat16 tensor arrive unchanged in an array of our own."""
    from ge_backend.host.dlpack import import_bf16

    tensor = torch.randn(shape).to(torch.bfloat16)
    bits = import_bf16(FromTorch(tensor))
    assert bits.shape == shape
    assert np.array_equal(bits, tensor.view(torch.int16).numpy().view(np.uint16))


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4)])
def test_export_is_read_by_torch(shape):
    """Torch reads an exported capsule as bfloat16 with the same bits."""
    from ge_backend.host.dlpack import export_bf16

    bits = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)
    tensor = torch.utils.dlpack.from_dlpack(export_bf16(bits))
    assert tensor.dtype is torch.bfloat16
    assert np.array_equal(tensor.view(torch.int16).numpy().view(np.uint16), bits)


def test_export_frees_the_array_when_the_consumer_is_done():
    """The array lives exactly as long as the consumer's tensor."""
    from ge_backend.host.dlpack import export_bf16

    bits = np.zeros(1000, np.uint16)
    before = sys.getrefcount(bits)
    tensor = torch.utils.dlpack.from_dlpack(export_bf16(bits))
    gc.collect()
    assert sys.getrefcount(bits) > before
    del tensor
    gc.collect()
    assert sys.getrefcount(bits) == before


def test_import_refuses_another_type():
    """A float32 tensor where BF16 is declared is an invalid request that names the input."""
    from ge_backend.errors import InvalidRequest
    from ge_backend.host.dlpack import import_bf16

    with pytest.raises(InvalidRequest, match="'x' is not BF16"):
        import_bf16(FromTorch(torch.zeros(2)))
