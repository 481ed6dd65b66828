"""The chip of this machine's NPUs, for whoever compiles for it without using it."""

from __future__ import annotations

import importlib

from ge_backend.device.acl.runtime import AclRuntime
from ge_backend.errors import DeviceUnavailable

__all__ = ["chip_name"]


def chip_name() -> str:
    """Return the name of the chip, as `atc --soc_version` takes it: `Ascend910B3`.

    Raises:
        DeviceUnavailable: there is no NPU, or CANN's Python module is not there.
    """
    try:
        runtime = AclRuntime(importlib.import_module("acl"))
    except ImportError as error:
        raise _unknown(str(error)) from error
    ours = runtime.initialise()
    try:
        name = runtime.chip()
    finally:
        if ours:
            runtime.finalise()
    if not name:
        raise _unknown("ACL sees no chip")
    return name


def _unknown(reason: str) -> DeviceUnavailable:
    return DeviceUnavailable(
        f"which chip to compile for is not known here ({reason}); give --soc-version: on the "
        "machine that will serve, the Name of 'npu-smi info' with 'Ascend' before it (Ascend910B3, "
        "Ascend310P3); on Atlas A3 and Ascend 950 the Chip Name and the NPU Name of "
        "'npu-smi info -t board -i <id> -c <chip>' with '_' between (Ascend910_9382)"
    )
