"""Faults that a test asks for: any call can fail with any code, any kernel can fail or hang."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

__all__ = ["Fault", "Faults"]


@dataclass(slots=True, kw_only=True)
class Fault:
    """A call, or a kernel, that is to fail.

    Attributes:
        name: `rt.malloc`, `kernel.<model>`, or a pattern such as `mdl.*`.
        code: the error code; 0 for a hang.
        after: so many matching calls succeed first.
        times: so many fail then; None for all.
        message: what `get_recent_err_msg` says.
        hang: the kernel never ends.
    """

    name: str
    code: int = 0
    after: int = 0
    times: int | None = 1
    message: str = ""
    hang: bool = False

    @property
    def duration_ms(self) -> float:
        """How much longer the kernel takes."""
        return math.inf if self.hang else 0.0


class Faults:
    """The faults still to come, in the order in which they were asked for.

    Attributes:
        inbox: a file that may come at any time with more of them; it is removed when it is read.
    """

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.inbox: Path | None = None

    def add(self, fault: Fault) -> None:
        """Plan a fault."""
        self._faults.append(fault)

    def add_all(self, faults: Iterable[Mapping[str, Any]]) -> None:
        """Plan faults that are given as the arguments of `Fault`."""
        self._faults += [Fault(**fault) for fault in faults]

    def clear(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def take(self, name: str) -> Fault | None:
        """Return the fault that this call meets, and count it."""
        if self.inbox is not None and self.inbox.exists():
            text = self.inbox.read_text()
            self.inbox.unlink()
            self.add_all(json.loads(text))
        for fault in self._faults:
            if not fnmatchcase(name, fault.name):
                continue
            if fault.after > 0:
                fault.after -= 1
                continue
            if fault.times is not None:
                fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
            return fault
        return None
