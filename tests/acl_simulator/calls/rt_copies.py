"""`acl.rt`: copies and fills, at once and on a stream."""

import numpy as np

from acl_simulator.codes import Code, CopyKind
from acl_simulator.machine.hazards import reading, writing
from acl_simulator.machine.machine import Machine
from acl_simulator.machine.memory import ALIGNMENT
from acl_simulator.machine.streams import Work
from acl_simulator.refusals import Refusal

__all__ = ["CopyCalls"]

# kind -> (the destination is on a device, the source is)
SIDES = {
    CopyKind.HOST_TO_HOST: (False, False),
    CopyKind.HOST_TO_DEVICE: (True, False),
    CopyKind.DEVICE_TO_HOST: (False, True),
    CopyKind.DEVICE_TO_DEVICE: (True, True),
}


class CopyCalls:
    """One machine's copy calls."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def memcpy(self, to: int, room: int, source: int, size: int, kind: int) -> None:
        work = self._copy("memcpy", to, room, source, size, kind)
        self._machine.context()
        self._machine.hazards.touch(work.name, *work.accesses)
        work.finish()

    def memcpy_async(
        self, to: int, room: int, source: int, size: int, kind: int, stream: int
    ) -> None:
        machine = self._machine
        queue = machine.stream(stream)
        work = self._copy("memcpy_async", to, room, source, size, kind)
        if SIDES[self._kind(to, source, kind)] == (False, False):
            raise Refusal(Code.RT_FEATURE_UNSUPPORTED, "memcpy_async from host to host")
        for address in (to, source):
            if not machine.memory.device_of(address) and not machine.memory.is_pinned(address):
                machine.misuses.refuse(
                    f"memcpy_async: {address:#x} is host memory that malloc_host did not give"
                )
            if address % ALIGNMENT:
                machine.misuses.refuse(f"memcpy_async: {address:#x} is not 64-byte aligned")
        queue.submit(work)

    def memcpy_async_with_condition(
        self, to: int, room: int, source: int, size: int, kind: int, stream: int
    ) -> None:
        self.memcpy_async(to, room, source, size, kind, stream)

    def memset(self, to: int, room: int, value: int, size: int) -> None:
        self._machine.context()
        work = self._fill("memset", to, room, value, size)
        self._machine.hazards.touch(work.name, *work.accesses)
        work.finish()

    def memset_async(self, to: int, room: int, value: int, size: int, stream: int) -> None:
        queue = self._machine.stream(stream)
        queue.submit(self._fill("memset_async", to, room, value, size))

    def _copy(self, name: str, to: int, room: int, source: int, size: int, kind: int) -> Work:
        machine = self._machine
        self._check_sizes(name, to, room, size)
        if source == 0:
            raise Refusal(Code.INVALID_PARAM, f"{name} from a null pointer")
        kind = self._kind(to, source, kind)
        accesses = [
            writing(to, size, f"the destination of {name}"),
            reading(source, size, f"the source of {name}"),
        ]
        self._machine.keep_weights(name, accesses[0])
        machine.memory.view(to, size), machine.memory.view(source, size)  # are they all there?

        def finish() -> None:
            machine.memory.view(to, size)[:] = machine.memory.view(source, size)
            machine.uploads += kind == CopyKind.HOST_TO_DEVICE
            machine.downloads += kind == CopyKind.DEVICE_TO_HOST
            machine.uploaded_bytes += size * (kind == CopyKind.HOST_TO_DEVICE)
            machine.downloaded_bytes += size * (kind == CopyKind.DEVICE_TO_HOST)

        return Work(name=name, accesses=accesses, finish=finish)

    def _fill(self, name: str, to: int, room: int, value: int, size: int) -> Work:
        memory = self._machine.memory
        self._check_sizes(name, to, room, size)
        access = writing(to, size, f"the destination of {name}")
        self._machine.keep_weights(name, access)
        memory.view(to, size)

        def finish() -> None:
            memory.view(to, size)[:] = np.uint8(value & 0xFF)

        return Work(name=name, accesses=[access], finish=finish)

    def _check_sizes(self, name: str, to: int, room: int, size: int) -> None:
        if to == 0:
            raise Refusal(Code.INVALID_PARAM, f"{name} to a null pointer")
        if not 0 < size <= room:
            raise Refusal(Code.RT_PARAM_INVALID, f"{name} of {size} bytes into {room}")

    def _kind(self, to: int, source: int, kind: int) -> CopyKind:
        """Return what the copy is; refuse it if that is not what the caller says."""
        sides = tuple(self._machine.memory.device_of(a) is not None for a in (to, source))
        actual = next(kind for kind, its in SIDES.items() if its == sides)
        if kind not in (actual, CopyKind.DEFAULT):
            raise Refusal(
                Code.RT_PARAM_INVALID,
                f"copy kind {kind}, but {source:#x} to {to:#x} is {actual.name} ({actual})",
            )
        return actual
