"""ACL's numbers, which the module `acl` itself does not have, and what its error codes mean here.

Source: CANN runtime include/external/acl/acl_base_rt.h (enumerations) and the error list of its
API reference (aclError), both at hicann/runtime.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ge_backend.errors import DeviceFault, GeError, GraphFailed, OutOfMemory
from ge_backend.tensors import DATA_TYPES, DataType

__all__ = [
    "ALIGNMENT",
    "COPY_ON_DEVICE",
    "COPY_TO_DEVICE",
    "COPY_TO_HOST",
    "DDR_MEMORY",
    "FORMAT_ND",
    "HBM_MEMORY",
    "HUGE_PAGES_FIRST",
    "NOT_SUPPORTED",
    "REPEAT_INITIALISE",
    "UNSUPPORTED_TASK",
    "acl_number",
    "acl_type",
    "failure",
    "one_line",
]

# `kind` of a copy.
COPY_TO_DEVICE = 1
COPY_TO_HOST = 2
COPY_ON_DEVICE = 3
# `policy` of `rt.malloc`.
HUGE_PAGES_FIRST = 0
# `attr` of `rt.get_mem_info`.
DDR_MEMORY = 0
HBM_MEMORY = 1
FORMAT_ND = 2
# Where copies and slices of a block must begin.
ALIGNMENT = 64
# `init` was called in this process before, by torch_npu for instance: nothing is wrong.
REPEAT_INITIALISE = 100002
# What is asked is not answered for such a model.
NOT_SUPPORTED = 200001
# Loading a file whose tasks a vNPU does not have: the device is well.
UNSUPPORTED_TASK = 507009

_TYPES: Mapping[int, str] = {
    0: "FP32",
    1: "FP16",
    2: "INT8",
    3: "INT32",
    4: "UINT8",
    6: "INT16",
    7: "UINT16",
    8: "UINT32",
    9: "INT64",
    10: "UINT64",
    11: "FP64",
    12: "BOOL",
    27: "BF16",
}
_NUMBERS = {name: number for number, name in _TYPES.items()}

# Memory, and what else a device has a fixed number of: streams, events, notifies, model slots,
# programs (507032).
_RESOURCES = frozenset({200000, 207001, 207005, *range(207007, 207013), 207018, 245000, 507032})
# 107019, 107020 and 207020 are timeouts of a wait, 545601 is one of a run: what was waited for goes
# on. 207004: the card is gone.
_FAULTS = frozenset({107019, 107020, 207004, 207020, 545601, *range(507000, 508000)})
# The graph engine failed, and does not say over what: RuntimeV2 drops the code of the runtime.
# Source: hicann/ge runtime/v2/utils/utils.cc, model_v2_executor.cc; ACL_GET_ERRCODE_GE.
_GENERIC = frozenset({*range(500000, 500005), 545000})
# What the runtime's own text says then, mostly behind a stack.
# Source: hicann/ge device_allocator.cc, utils.cc; CANN runtime error_code.json (EL0004),
# error_message_manage.cc, errcode_manage.cc ("aicore exception", "vector core timeout", ...).
_LACK = re.compile(r"EL0004|aclrtMalloc fail")
_BROKEN = re.compile(r"reason=\[?[\w ]*\b(exception|timeout)|stream synchronize timeout")

_MEANINGS: Mapping[int, str] = {
    100000: "invalid parameter",
    100001: "not initialised",
    100003: "invalid file",
    100011: "invalid model id",
    100037: "finalised twice",
    107000: "invalid parameter",
    107001: "invalid device id",
    107002: "no current context",
    107003: "stream of another context",
    107004: "model of another context",
    107017: "invalid handle",
    107018: "invalid kind of memory",
    107019: "timeout",
    107020: "timeout",
    145000: "invalid parameter",
    145001: "not initialised",
    145002: "invalid model path",
    145003: "unknown model id",
    145006: "invalid size of model data",
    145007: "invalid address of model data",
    145009: "model loaded twice",
    145011: "invalid address of the gear",
    145012: "invalid length of the gear",
    145013: "the shape is none of the model's gears",
    145020: "invalid tensor format",
    145021: "invalid tensor shape",
    145022: "invalid tensor type",
    148049: "invalid operator path",
    200000: "out of memory",
    200001: "not supported",
    207000: "not supported",
    207001: "out of device memory",
    207004: "the device is not available",
    207005: "no stream left",
    207007: "no event left",
    207008: "no stream left",
    207009: "no notify left",
    207010: "no room for a model left",
    207011: "no queue left",
    207012: "over a limit",
    207018: "out of device memory",
    207020: "driver timeout",
    245000: "out of memory",
    300000: "more than ACL can list",
    500000: "internal error",
    500002: "graph engine failed",
    507000: "runtime failed",
    507009: "type of task not supported",
    507011: "model execution failed",
    507014: "AI core timeout",
    507015: "AI core exception",
    507018: "AI CPU exception",
    507032: "no program left",
    507033: "device set-up failed",
    507034: "vector core timeout",
    507035: "vector core exception",
    507046: "the device did not finish in time",
    507053: "uncorrectable memory error",
    507054: "uncorrectable memory error (ECC)",
    507899: "driver failed",
    507901: "link to the device closed",
    545000: "graph engine failed",
    545001: "model cannot be loaded",
    545009: "model cannot be unloaded",
    545601: "execution timeout",
}
_LONGEST = 600
_STACK = "TraceBack (most recent call last)"


def acl_type(number: int) -> DataType | None:
    """Return the type of an ACL number; None for those that Triton does not carry."""
    name = _TYPES.get(number)
    return None if name is None else DATA_TYPES[name]


def acl_number(dtype: DataType) -> int:
    """Return a type's ACL number; every type of a loaded model has one."""
    return _NUMBERS[dtype.name]


def failure(call: str, code: int, message: str | None, cause: int = 0) -> GeError:
    """Return the error for a call, such as `rt.malloc`, that did not return 0.

    Args:
        call: which.
        code: what it returned.
        message: what CANN says about it, if anything.
        cause: the code of the runtime's last failure during the call, if that is known.
    """
    cause = cause if code in _GENERIC else 0
    kind = _kind(cause or code)
    if kind is GraphFailed and code in _GENERIC:
        kind = _kind_from_text(message or "")
    text = f"acl.{call} failed with {_named(code)}" + (f" after {_named(cause)}" if cause else "")
    said = one_line(message or "")
    return kind(f"{text}: {said}" if said else text)


def _kind(code: int) -> type[GeError]:
    if code in _RESOURCES:
        return OutOfMemory
    return DeviceFault if code in _FAULTS else GraphFailed


def _kind_from_text(message: str) -> type[GeError]:
    if _LACK.search(message):
        return OutOfMemory
    return DeviceFault if _BROKEN.search(message) else GraphFailed


def _named(code: int) -> str:
    return f"{code} ({_MEANINGS.get(code, 'unknown error')})"


def one_line(message: str) -> str:
    """Return what CANN says in one line, without the stack that follows it."""
    text = " ".join(message.partition(_STACK)[0].split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
