"""A GPU for executors where there is none: the package's own on the stand-in for torch's accelerator.

It takes the place of the package's own in the executors that `EXECUTORS`, an environment, has
started. ONNX Runtime, which has streams and memory of its own, computes with its CPU provider.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fakes.torch_vendor import FakeVendor
from ge_backend.engines.kinds.cuda import LANES, CudaDevice
from ge_backend.engines.ort import cuda as onnx_cuda

__all__ = ["EXECUTORS", "FakeCuda"]

EXECUTORS = {
    "GE_PYTHON": str(Path(__file__).resolve().parent / "cuda_python" / "python"),
    "TEST_PYTHON": sys.executable,
}
MEMORY_BYTES = 4 << 30


class FakeCuda(CudaDevice):
    """A GPU that is there by every index."""

    @classmethod
    def open(cls, index, *, lanes=0):
        onnx_cuda.PROVIDER, onnx_cuda.OPTIONS = "CPUExecutionProvider", {}
        return cls(FakeVendor(total_bytes=MEMORY_BYTES), lanes=lanes or LANES)
