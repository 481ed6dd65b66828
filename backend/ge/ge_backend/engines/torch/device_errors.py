"""What torch's errors say of an accelerator: it broke, its memory is used up, or nothing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import PurePath

from ge_backend.device.failures import failure, reason, without_folders
from ge_backend.engines.torch.vendor import Vendor
from ge_backend.errors import DeviceFault, GeError, OutOfMemory

__all__ = ["ENGINE_ERRORS", "device_errors", "meaning"]

log = logging.getLogger(__name__)

# What a run of a torch program may raise: `failures.failure` makes one of our errors of it.
ENGINE_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    AssertionError,  # a guard of torch.export: a size that the program was not exported for
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    MemoryError,
)
_HANDLED: tuple[type[Exception], ...] = (*ENGINE_ERRORS, GeError)


def meaning(error: BaseException, path: str, vendor: Vendor | None) -> GeError:
    """Return `DeviceFault` or `OutOfMemory` where an error says that, else what `failure` does.

    `vendor` is None on a CPU.
    """
    return _of_device(error, path, vendor) or failure(error, path)


@contextlib.contextmanager
def device_errors(path: str, vendor: Vendor | None) -> Iterator[None]:
    """Raise what an error says of the device; one that says nothing of it passes as it is.

    One of ours against a model says what the error does of which it was made.
    """
    try:
        yield
    except _HANDLED as error:
        of_device = _original_of_device(error, path, vendor)
        if of_device is None:
            raise
        try:
            raise of_device from error
        finally:
            # This frame is in both errors' tracebacks: they would keep each other, and all
            # frames that had device memory, until circles are collected.
            del of_device


def _original_of_device(error: BaseException, path: str, vendor: Vendor | None) -> GeError | None:
    found = None if isinstance(error, DeviceFault | OutOfMemory) else _first(error)
    return None if found is None else _of_device(found, path, vendor)


def _first(error: BaseException) -> BaseException | None:
    """Return the engine's error that one of ours was made of; None if it was made of none."""
    found: BaseException | None = error
    while isinstance(found, GeError):
        found = found.__cause__
    return found


def _of_device(error: BaseException, path: str, vendor: Vendor | None) -> GeError | None:
    if vendor is None:
        return None
    kind: type[GeError]
    if vendor.is_fault(error):
        kind, what = DeviceFault, f"{vendor.device} broke under {PurePath(path).name}"
    elif vendor.is_out_of_memory(error):
        kind, what = OutOfMemory, f"{PurePath(path).name} on {vendor.device}"
    else:
        return None
    log.warning("%s on %s: %s", path, vendor.device, str(error))  # not the error: it holds frames
    return kind(f"{what}: {without_folders(reason(error), path)}")
