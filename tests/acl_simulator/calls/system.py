"""`acl.*`: beginning, end and versions."""

import json
from pathlib import Path

from acl_simulator.codes import DATA_TYPES, Code
from acl_simulator.machine.machine import Machine
from acl_simulator.refusals import Refusal

__all__ = ["SystemCalls"]

VERSION = 1, 14, 0


def _check_config(path: str) -> None:
    try:
        json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise Refusal(Code.INVALID_FILE, f"acl.init: {path}: {error}") from None


class SystemCalls:
    """One machine's system calls."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def init(self, path: str = "") -> None:
        machine = self._machine
        if machine.initialised:
            raise Refusal(Code.REPEAT_INITIALISE, "acl.init was called before")
        if path:
            _check_config(path)
        machine.initialised, machine.finalised, machine.config = True, False, path

    def finalize(self) -> None:
        machine = self._machine
        if machine.finalised:
            raise Refusal(Code.REPEAT_FINALISE, "acl.finalize was called before")
        if not machine.initialised:
            raise Refusal(Code.UNINITIALISED, "acl.init was not called")
        if machine.owned_elsewhere:
            machine.misuses.refuse("finalize of an ACL that another library initialised and uses")
        machine.finalised, machine.initialised = True, False
        machine.memory.host.check()
        leaks = self._leaks()
        if leaks:
            machine.misuses.refuse("leaked at finalize: " + "; ".join(leaks))

    def finalize_reference(self) -> int:
        self.finalize()
        return 0

    def get_version(self) -> tuple[int, int, int]:
        return VERSION

    def get_soc_name(self) -> str | None:
        return self._machine.soc

    def get_recent_err_msg(self) -> str | None:
        return self._machine.take_message()

    def app_log(self, level: int, text: str) -> None:
        """Write nothing: the test has its own log."""

    def data_type_size(self, dtype: int) -> int:
        return DATA_TYPES[dtype][1].itemsize if dtype in DATA_TYPES else 0

    def _leaks(self) -> list[str]:
        machine = self._machine
        return [
            *(
                f"device {d.index} is set {d.references} times"
                for d in machine.devices
                if d.references
            ),
            *(f"model {model}" for model in machine.models.values()),
            *(f"memory {block}" for block in machine.memory.live()),
            *(f"{kind} {handle:#x}" for kind, handle in self._handles()),
        ]

    def _handles(self) -> list[tuple[str, int]]:
        """Return the handles that the caller has to destroy."""
        return [
            (kind, handle)
            for kind, handle, thing in self._machine.handles.live()
            if not (kind == "context" and thing.implicit)
        ]
