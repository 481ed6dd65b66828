"""Temperature and memory errors of NPUs, as the driver's `npu-smi` prints them.

Asked from a stub, which holds no ACL: CANN forbids a fork in a process whose copies are in flight
(pyACL's manual, restrictions), so an executor must not start programs. The formats are those of
the program's published sources and of printed examples in Ascend's documents; not seen on hardware.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from ge_backend.metrics import Recorder

__all__ = ["NpuSensors", "open_sensors", "place_of", "read_ecc", "read_temperature"]

log = logging.getLogger(__name__)

PROGRAM = "npu-smi"
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
PERIOD_S = 10.0
TIMEOUT_S = 5.0
LOGGED_CHARS = 200
# A row of `info -m`: NPU ID, Chip ID, Chip Logic ID; a card's controller has "-" for the last.
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s", re.MULTILINE)
# "NPU Temperature (C)" on servers, "Temperature (C)" elsewhere.
_TEMPERATURE = re.compile(r"^\s*(?:NPU )?Temperature ?\(C\)\s*:\s*(-?\d+)\s*$", re.MULTILINE)
# Counts of now: those of a chip's whole life ("Aggregate") and of pages taken away are not meant.
_ECC = re.compile(r"^\s*(?:DDR|HBM) (Single|Double) Bit Error Count\s*:\s*(\d+)\s*$", re.MULTILINE)
_KINDS = {"Single": "corrected", "Double": "uncorrected"}


def place_of(index: int, visible: str, mapping: str) -> tuple[str, str] | None:
    """Return an NPU's card and chip, as npu-smi counts them; None where that is not known.

    Args:
        index: of the NPU in this process, as in `npu:0`.
        visible: ASCEND_RT_VISIBLE_DEVICES, "" where it is not set.
        mapping: what `npu-smi info -m` prints.
    """
    shown = [number.strip() for number in visible.split(",")] if visible else None
    if shown is not None and index >= len(shown):
        return None
    logic = str(index) if shown is None else shown[index]
    return {row[3]: (row[1], row[2]) for row in _ROW.finditer(mapping)}.get(logic)


def read_temperature(printed: str) -> int | None:
    """Return the chip's degrees Celsius; None where nothing says so."""
    found = _TEMPERATURE.search(printed)
    return None if found is None else int(found[1])


def read_ecc(printed: str) -> dict[str, int]:
    """Return how many errors memory has had, by `corrected` and `uncorrected`; {} if not said."""
    counts: dict[str, int] = {}
    for found in _ECC.finditer(printed):
        kind = _KINDS[found[1]]
        counts[kind] = counts.get(kind, 0) + int(found[2])
    return counts


def open_sensors(
    devices: Sequence[str], environment: Mapping[str, str], recorder: Recorder
) -> list[NpuSensors]:
    """Return what reads the sensors of those devices that are NPUs; none without npu-smi."""
    npus = [device for device in devices if device.partition(":")[0] == "npu"]
    if not npus:
        return []
    program = shutil.which(PROGRAM, path=environment.get("PATH"))
    if program is None:
        log.info("no temperature and ECC errors of %s: there is no %s", ", ".join(npus), PROGRAM)
        return []
    return [NpuSensors(Path(program), npus, environment.get(VISIBLE, ""), recorder)]


class NpuSensors:
    """A thread that records them every ten seconds, beside all that serves.

    What cannot be read is said once in the log, and tried again.

    Args:
        program: npu-smi.
        devices: `npu:0`, ….
        visible: ASCEND_RT_VISIBLE_DEVICES.
        recorder: gets the gauges.
    """

    def __init__(
        self, program: Path, devices: Sequence[str], visible: str, recorder: Recorder
    ) -> None:
        self._program = program
        self._devices = devices
        self._visible = visible
        self._recorder = recorder
        self._places: dict[str, tuple[str, str]] = {}
        self._logged: set[tuple[str, str]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read_until_stopped, name="sensors")
        self._thread.daemon = True
        self._thread.start()

    def close(self) -> None:
        """End the thread; one whose npu-smi hangs in the driver is left behind."""
        self._stop.set()
        self._thread.join(2 * TIMEOUT_S)

    def _read_until_stopped(self) -> None:
        while True:
            for device in self._devices:
                self._read(device)
            if self._stop.wait(PERIOD_S):
                return

    def _read(self, device: str) -> None:
        place = self._place(device)
        if place is None:
            return
        chip = "-i", place[0], "-c", place[1]
        printed = self._ask("-t", "temp", *chip)
        temperature = read_temperature(printed)
        if temperature is None:
            self._miss(device, "temperature", printed)
        else:
            self._recorder.set("ge_device_temperature_celsius", float(temperature), device=device)
        printed = self._ask("-t", "ecc", *chip)
        errors = read_ecc(printed)
        if not errors:
            self._miss(device, "ECC errors", printed)
        for kind, count in errors.items():
            self._recorder.set("ge_device_ecc_errors", float(count), device=device, kind=kind)

    def _place(self, device: str) -> tuple[str, str] | None:
        if device not in self._places:
            mapping = self._ask("-m")
            place = place_of(int(device.partition(":")[2] or 0), self._visible, mapping)
            if place is None:
                self._miss(device, "card and chip", mapping)
                return None
            self._places[device] = place
        return self._places[device]

    def _ask(self, *arguments: str) -> str:
        """Return what npu-smi prints, or why it did not."""
        if self._stop.is_set():
            return ""
        try:
            done = subprocess.run(
                [str(self._program), "info", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return done.stdout

    def _miss(self, device: str, what: str, printed: str) -> None:
        if self._stop.is_set() or (device, what) in self._logged:
            return
        self._logged.add((device, what))
        log.warning(
            "%s does not tell the %s of %s: %s",
            PROGRAM,
            what,
            device,
            " ".join(printed.split())[:LOGGED_CHARS] or "it prints nothing",
        )
