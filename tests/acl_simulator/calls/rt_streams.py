"""`acl.rt`: streams, waiting for them, and how many cores they may use."""

from acl_simulator.codes import Code
from acl_simulator.machine.devices import SOCS
from acl_simulator.machine.machine import Machine
from acl_simulator.machine.streams import Stream
from acl_simulator.refusals import Refusal

__all__ = ["StreamCalls", "wait_for_ever"]

COMPLETE, NOT_READY = 0, 1


class StreamCalls:
    """One machine's stream calls."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def create_stream(self) -> int:
        machine = self._machine
        context = machine.context()
        if self.get_stream_available_num() == 0:
            raise Refusal(Code.RT_NO_STREAM, f"device {context.device.index} has no stream left")
        stream = machine.new_stream(context)
        stream.handle = machine.handles.issue("stream", stream)
        context.streams.append(stream)
        return stream.handle

    def create_stream_with_config(self, priority: int, flag: int) -> int:
        return self.create_stream()

    def destroy_stream(self, handle: int) -> None:
        stream = self._machine.handles.get("stream", handle)
        mine = [task for task in self._machine.hazards.in_flight if task.stream is stream]
        if mine:
            self._machine.misuses.refuse(
                f"destroy_stream({handle:#x}) while {mine[0].name} is in flight on it"
            )
        self._destroy(handle)

    def destroy_stream_force(self, handle: int) -> None:
        self._destroy(handle)

    def synchronize_stream(self, handle: int) -> None:
        stream = self._machine.any_stream(handle)
        if not stream.synchronise():
            wait_for_ever(self._machine, f"synchronize_stream({handle:#x})")

    def synchronize_stream_with_timeout(self, handle: int, timeout_ms: int) -> None:
        stream = self._machine.any_stream(handle)
        if timeout_ms < -1:
            raise Refusal(Code.RT_PARAM_INVALID, f"a timeout of {timeout_ms} ms")
        if timeout_ms == -1:
            self.synchronize_stream(handle)
        elif not stream.synchronise(timeout_ms):
            raise Refusal(
                Code.STREAM_SYNC_TIMEOUT, f"stream {stream} was not ready after {timeout_ms} ms"
            )

    def synchronize_device(self) -> None:
        for context in self._machine.context().device.contexts:
            for stream in [context.default_stream, *context.streams]:
                if not stream.synchronise():
                    wait_for_ever(self._machine, "synchronize_device()")

    def stream_query(self, handle: int) -> int:
        """Let one more task run with every question: polling gets there, but never at once."""
        stream = self._machine.stream(handle)
        if stream.completed == stream.submitted:
            self._machine.hazards.see(stream.clock)
            return COMPLETE
        stream.drive(stream.completed + 1, 1.0)
        return NOT_READY

    def get_stream_available_num(self) -> int:
        device = self._machine.context().device
        return SOCS[self._machine.soc].streams - len(device.streams)

    def set_stream_res_limit(self, handle: int, kind: int, value: int) -> None:
        stream = self._machine.stream(handle)
        limits = stream.context.device.limits
        if not 0 < value <= limits.get(kind, 0):
            raise Refusal(Code.RT_PARAM_INVALID, f"{value} cores of kind {kind}, of {limits}")
        stream.limits[kind] = value

    def get_stream_res_limit(self, handle: int, kind: int) -> int:
        stream = self._machine.stream(handle)
        limits = {**stream.context.device.limits, **stream.limits}
        if kind not in limits:
            raise Refusal(Code.RT_PARAM_INVALID, f"cores of kind {kind}")
        return limits[kind]

    def reset_stream_res_limit(self, handle: int) -> None:
        self._machine.stream(handle).limits.clear()

    def use_stream_res_in_current_thread(self, handle: int) -> None:
        self._machine.stream(handle)

    def _destroy(self, handle: int) -> None:
        stream: Stream = self._machine.handles.release("stream", handle)
        stream.discard()
        stream.context.streams.remove(stream)


def wait_for_ever(machine: Machine, call: str) -> None:
    """Refuse a wait that would never end."""
    machine.misuses.refuse(f"{call} would wait for ever: its work hangs, and it has no timeout")
