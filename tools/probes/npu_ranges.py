"""Runs of a model with ranges on an NPU, by ACL's own calls, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ge_backend.engines.acl.codes import acl_number
from ge_backend.engines.acl.models import AclModels
from ge_backend.engines.acl.runtime import AclRuntime
from ge_backend.tensors import DATA_TYPES, Shape

__all__ = ["nowhere", "range_run"]


@contextmanager
def range_run(acl: Any, path: Path, shape: Shape, address: int) -> Iterator[Callable[[], str]]:
    """Give a function that runs a model once at once, as RuntimeV2 does, and says how it ended.

    That is the run's code and CANN's text, and the code of the thread's last error then.

    Args:
        acl: the module; a device is this thread's.
        path: of a model with one input, FP32, and one output.
        shape: of the input.
        address: of the input, on the device.
    """
    runtime = AclRuntime(acl)
    models = AclModels(acl, runtime)
    model = models.load_alone(str(path))
    number = acl_number(DATA_TYPES["FP32"])
    inputs = models.dataset([(address, shape[0] * shape[1] * 4)])
    outputs = models.dataset([(0, 0)])
    models.state_shape(inputs, 0, number, shape)

    def run() -> str:
        runtime.take_last_error()
        acl.get_recent_err_msg()  # both are of what was before
        code = acl.mdl.execute(model, inputs, outputs)
        text = " ".join(str(acl.get_recent_err_msg() or "no text").split())[:200]
        return f"execute {code} ({text}); last error {runtime.take_last_error()}"

    try:
        yield run
    finally:
        found = models.placed(outputs, 0)
        if found:
            runtime.free(found)
        for dataset in (inputs, outputs):
            models.close_dataset(dataset)
        models.unload(model)


def nowhere(acl: Any, nbytes: int) -> int:
    """Return the address of device memory that has been given back."""
    address, _ = acl.rt.malloc(nbytes, 0)
    acl.rt.free(address)
    return int(address)
