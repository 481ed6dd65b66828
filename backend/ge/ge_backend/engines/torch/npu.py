"""torch on Ascend NPUs: `torch.npu`, which `torch_npu` adds, how to set it, what its errors mean.

Not run on an NPU. A test holds every name and keyword that is used of it, here and in
`vendor.py`, against the sources of torch_npu 2.7.1 to 2.14.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, MutableMapping

import torch

from ge_backend.device.failures import reason
from ge_backend.device.imports import importing
from ge_backend.engines.torch.vendor import Vendor, renamed
from ge_backend.errors import DeviceUnavailable

__all__ = ["END_POOL", "open_npu"]

log = logging.getLogger(__name__)

# torch_npu puts the error codes of ACL into its messages: "error code is 507015", "NPU error code
# is:507015", "error code:507015" (strings of libtorch_npu.so 2.7.1 and 2.12); CANN adds a number of
# its own, "[PID: 507123]". 507xxx: the device, a core or the driver broke, or does not answer;
# 507903 only says that a capture was spoilt. Source of the codes: CANN, API reference, aclError.
# Faults of memory and of links have words instead, and so has what ends the task queue.
# Source: torch_npu at 9e73e70, NPUQueue.cpp (deviceErrorMap, MakeSureQueueEmpty), NPUException.cpp.
_CODE = r"error code(?: is)?:?\s*"
_NO_MEMORY = re.compile(rf"out of memory|{_CODE}(200000|207001|207018|245000)\b")
_FAULT = re.compile(
    rf"{_CODE}507(?!903)\d{{3}}\b|process exits for this inner error|"
    "(UCE|HBM MULTI BIT ECC|SUSPECT MEM|SUSPECT REMOTE|HCCS LINK|UB LINK) ERROR|"
    "HCCL OP RETRY FAILED|FORCE STOP"
)
# What ends a capture in the allocator: of torch_npu for torch 2.13 and later, and before.
# Source: torch_npu/npu/_graph_tree.py of the wheels 2.7.1 to 2.14.
END_POOL = ("_npu_endAllocateToPool", "_npu_endAllocateCurrentStreamToPool")

# What an import raises where CANN is missing or does not fit; an assertion is torchair's.
_IMPORT_ERRORS = (ImportError, RuntimeError, OSError, AssertionError)
# This many shapes get a program of their own; by default torch.compile gives up after 8.
_PROGRAMS = 512


def open_npu(
    index: int,
    enter: Callable[[], object] = lambda: None,
    *,
    puts_rows: bool = True,
    captures: bool = True,
) -> Vendor:
    """Return an NPU by its index among those that ASCEND_RT_VISIBLE_DEVICES shows.

    From then on operators are not compiled anew for each shape (`jit_compile`), and FP32 is
    computed in FP32, not in HF32: `origin` promises what the file says. Settings of the environment
    that do not do for serving are changed.
    Source: torch_npu 2.13, npu/npu_config.py.

    Args:
        index: which.
        enter: makes its primary context the calling thread's, where ACL has it open already:
            `torch.npu.set_device` itself asks first which device the thread has.
        puts_rows: as `Vendor` has it.
        captures: likewise.

    Raises:
        DeviceUnavailable: torch_npu or CANN is missing, or there are fewer NPUs.
    """
    _set_environment(os.environ)
    try:
        with importing():
            import torch_npu  # adds torch.npu
    except _IMPORT_ERRORS as error:
        raise DeviceUnavailable(
            f"device 'npu:{index}' needs torch_npu for torch models: {reason(error)}; install the "
            "torch_npu that belongs to your torch, and source CANN's set_env.sh"
        ) from error
    count = torch.npu.device_count() if torch.npu.is_available() else 0
    if index >= count:
        raise DeviceUnavailable(
            f"device 'npu:{index}': torch sees {count} NPUs; see npu-smi info and "
            "ASCEND_RT_VISIBLE_DEVICES"
        )

    def entered() -> None:
        enter()
        torch.npu.set_device(index)

    entered()
    torch.npu.set_compile_mode(jit_compile=False)
    torch.npu.matmul.allow_hf32 = False
    torch.npu.conv.allow_hf32 = False
    return Vendor(
        device=f"npu:{index}",
        enter=entered,
        module=torch.npu,
        graph=torch.npu.NPUGraph,
        end_pool=renamed(torch_npu._C, END_POOL, f"torch_npu {torch_npu.__version__}"),  # noqa: SLF001 - as torch_npu.npu uses it
        compile=_compile,
        no_memory=_NO_MEMORY,
        fault=_FAULT,
        puts_rows=puts_rows,
        captures=captures,
    )


def _set_environment(environment: MutableMapping[str, str]) -> None:
    """Change what torch_npu reads from the environment.

    By default another thread launches operators. An error there is raised once, in whichever thread
    asks next; from then on what is queued is dropped, and outputs are what their
    memory held. In the other mode, 2, nothing is captured either. Compact errors have no codes.
    Source: torch_npu at 9e73e70, NPUQueue.cpp, Repository::Enqueue; NPUException.h; NPUGraph.cpp.
    """
    if environment.get("TASK_QUEUE_ENABLE", "0") != "0":
        log.warning(
            "TASK_QUEUE_ENABLE is %s: it is 0 here, because torch_npu drops what is queued behind "
            "an error",
            environment["TASK_QUEUE_ENABLE"],
        )
    environment["TASK_QUEUE_ENABLE"] = "0"
    if environment.pop("TORCH_NPU_COMPACT_ERROR_OUTPUT", None):
        log.warning("TORCH_NPU_COMPACT_ERROR_OUTPUT is left out here: errors need their codes")
    name = "PYTORCH_NPU_ALLOC_CONF"
    given = [part for part in environment.get(name, "").split(",") if part]
    kept = [part for part in given if not part.strip().startswith("pin_memory_expandable_segments")]
    if kept != given:
        environment[name] = ",".join(kept)
        log.warning(
            "%s has pin_memory_expandable_segments, with which no graph can be captured: "
            "it is left out here",
            name,
        )


def _compile(module: torch.nn.Module) -> None:
    """Let torchair make a GE graph for each shape.

    Source: torch_npu 2.13, dynamo/torchair/configs/compiler_config.py: `max-autotune` is GE.
    """
    try:
        with importing():
            from torch_npu.dynamo import torchair
    except _IMPORT_ERRORS as error:
        raise DeviceUnavailable(
            f"torch.mode torchair: torchair cannot be imported: {reason(error)}"
        ) from error
    torch._dynamo.config.recompile_limit = _PROGRAMS  # noqa: SLF001 - torch documents it so
    config = torchair.CompilerConfig()
    config.mode = "max-autotune"
    backend = torchair.get_npu_backend(compiler_config=config)
    module.compile(backend=backend, dynamic=False)
