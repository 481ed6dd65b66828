"""torch on NVIDIA GPUs: what to see to before `torch.cuda` is used, and what its errors mean."""

from __future__ import annotations

import os
import re
import warnings
from functools import partial

import torch

from ge_backend.device.failures import reason
from ge_backend.engines.torch.vendor import Vendor, renamed
from ge_backend.errors import DeviceUnavailable, Unsupported

__all__ = ["open_cuda"]

# The second is ONNX Runtime's. Source: onnxruntime, core/framework/bfc_arena.cc. The last is what a
# full GPU gives the first product of a thread.
_NO_MEMORY = re.compile(
    r"out of memory|Failed to allocate memory|CUBLAS_STATUS_ALLOC_FAILED|"
    r"CUDNN_STATUS_\w*ALLOC\w*_FAILED|CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate"
)
# After these every later call of the process fails, too. Torch ends all errors of CUDA with advice
# on "device-side assertions", whatever they are about.
# Source: CUDA Runtime API, cudaError_t: "leaves the process in an inconsistent state"; pytorch,
# c10/cuda/CUDADeviceAssertionHost.cpp.
_FAULT = re.compile(
    r"CUDA.*("
    "an illegal memory access|an illegal instruction|device-side assert triggered|"
    "hardware stack error|invalid program counter|launch timed out|misaligned address|"
    "global/shared address space|uncorrectable ECC|uncorrectable NVLink|"
    "unspecified launch failure|unknown error|invalid access of peer GPU memory|"
    "tensor memory not completely freed|"
    "MPS client has been terminated|external entity outside of CUDA"
    ")",
    re.IGNORECASE | re.DOTALL,
)
# What ends a capture in the allocator: since torch 2.8, and before.
# Source: torch/cuda/memory.py of the wheels 2.7.1 and 2.8.0.
END_POOL = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")


def open_cuda(index: int) -> Vendor:
    """Return a GPU by its index among those that CUDA_VISIBLE_DEVICES shows.

    From then on FP32 is computed in FP32 in this process, not in TF32, which keeps 10 bits of the
    fraction: `origin` promises what the file says. torch's own default is TF32 in convolutions.
    Source: PyTorch documentation, "CUDA semantics", TensorFloat-32.

    Raises:
        DeviceUnavailable: torch is built without CUDA, finds no GPU, or fewer.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise DeviceUnavailable(f"device 'cuda:{index}': {_why_none(said)}")
    if index >= count:
        raise DeviceUnavailable(
            f"device 'cuda:{index}': torch sees {count} GPUs, from cuda:0 on "
            f"(CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})"
        )
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return Vendor(
        device=f"cuda:{index}",
        enter=partial(torch.cuda.set_device, index),
        module=torch.cuda,
        graph=torch.cuda.CUDAGraph,
        end_pool=renamed(torch._C, END_POOL, f"torch {torch.__version__}"),  # noqa: SLF001 - as torch.cuda.memory uses it
        compile=_refuse,
        no_memory=_NO_MEMORY,
        fault=_FAULT,
    )


def _refuse(module: torch.nn.Module) -> None:
    del module
    raise Unsupported("torch.mode torchair is for NPUs; on CUDA say graphs or eager")


def _why_none(said: list[warnings.WarningMessage]) -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA; install a build that has it"
    warning = f" ({reason(Warning(str(said[0].message)))})" if said else ""
    return (
        f"torch {torch.__version__} finds no GPU{warning}; see whether nvidia-smi shows one, and "
        "what CUDA_VISIBLE_DEVICES says"
    )
