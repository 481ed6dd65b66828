"""Faults of the null device: what goes wrong, and when."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ge_backend.errors import (
    DeviceFault,
    DeviceUnavailable,
    GraphFailed,
    ModelError,
    OutOfMemory,
)
from ge_backend.tensors import Array

__all__ = ["GONE", "Fault", "Faults", "check_there"]

# The variable that names a folder; a null device is gone while that holds a file of its number.
GONE = "GE_NULL_GONE"
EVENTS = ("load", "prepare", "run")
DEEDS = ("fail", "out_of_memory", "fault", "sleep", "hold", "grow", "die")
# How often a held run looks whether it may go on.
LOOK_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        on: `load`, `prepare` or `run`.
        do: `fail` (GraphFailed), `out_of_memory` (OutOfMemory), `fault` (DeviceFault), `sleep` (for
            `ms`), `hold` (make `file`, and go on when somebody has removed it), `grow` (by `mib`,
            for ever), or `die`: the process ends at once, as after `kill -9`.
        nth: only at the nth such event since the fault was added; 0 is every one.
        value: only where some input holds this value; None is any input.
        ms: how long `sleep` lasts.
        file: what `hold` makes.
        mib: mebibytes that `grow` takes.
        says: what `fail` says, in place of its own words.
    """

    on: str
    do: str
    nth: int = 0
    value: float | None = None
    ms: float = 0.0
    file: str = ""
    mib: int = 0
    says: str = ""

    @classmethod
    def read(cls, entry: Mapping[str, Any], origin: str) -> Fault:
        """Return the fault that this JSON object states.

        Raises:
            ModelError: a key or a word is unknown; names those known.
        """
        known = {item.name for item in fields(cls)}
        if not set(entry) <= known or entry.get("on") not in EVENTS or entry.get("do") not in DEEDS:
            raise ModelError(
                f"{origin}: fault {dict(entry)} is not one: keys are {', '.join(sorted(known))}, "
                f"'on' is one of {', '.join(EVENTS)}, 'do' one of {', '.join(DEEDS)}"
            )
        return cls(**entry)


class Faults:
    """Some faults, and how often each one's event has come; safe to use from several threads."""

    def __init__(self) -> None:
        self._counts: dict[Fault, int] = {}
        self._grown: list[bytes] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Add a fault; its events are counted from now on."""
        with self._lock:
            self._counts[fault] = 0

    def clear(self) -> None:
        """Let nothing go wrong any more."""
        with self._lock:
            self._counts.clear()

    def strike(self, event: str, inputs: Mapping[str, Array], path: str) -> None:
        """Do what is due at this event.

        Raises:
            GraphFailed: a fault says `fail`.
            OutOfMemory: a fault says `out_of_memory`.
            DeviceFault: a fault says `fault`.
        """
        for fault in self._due(event, inputs):
            if fault.do == "die":
                os._exit(86)
            if fault.do == "sleep":
                time.sleep(fault.ms / 1e3)
            elif fault.do == "grow":
                self._grown.append(b"\1" * (fault.mib << 20))
            elif fault.do == "hold":
                _hold(Path(fault.file))
            elif fault.do == "fail":
                raise GraphFailed(fault.says or f"{path}: a fault was injected on {event}")
            elif fault.do == "fault":
                raise DeviceFault(f"{path}: a fault of the device was injected on {event}")
            else:
                raise OutOfMemory(f"{path}: a lack of memory was injected on {event}")

    def _due(self, event: str, inputs: Mapping[str, Array]) -> list[Fault]:
        due: list[Fault] = []
        with self._lock:
            for fault in self._counts:
                if fault.on != event or not _holds(fault.value, inputs):
                    continue
                self._counts[fault] += 1
                if fault.nth in {0, self._counts[fault]}:
                    due.append(fault)
        return due


def check_there(index: int, environment: Mapping[str, str]) -> None:
    """See that a null device can be opened now.

    Raises:
        DeviceUnavailable: the folder of gone devices has its number.
    """
    folder = environment.get(GONE)
    if folder and (Path(folder) / str(index)).exists():
        raise DeviceUnavailable(f"device null:{index} is gone while {folder}/{index} is there")


def _hold(file: Path) -> None:
    file.touch()
    while file.exists():
        time.sleep(LOOK_S)


def _holds(value: float | None, inputs: Mapping[str, Array]) -> bool:
    return value is None or any(bool(np.any(array == value)) for array in inputs.values())
