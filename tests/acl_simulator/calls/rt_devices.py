"""`acl.rt`: devices and contexts."""

from acl_simulator.codes import Code
from acl_simulator.machine.devices import Context, Device
from acl_simulator.machine.machine import Machine
from acl_simulator.refusals import Refusal

__all__ = ["DeviceCalls"]

ACL_HOST = 1


class DeviceCalls:
    """One machine's device and context calls."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def set_device(self, index: int) -> None:
        device = self._machine.device(index)
        device.references += 1
        if device.context is None:
            device.context = self._open(device, implicit=True)
        self._machine.current = device.context

    def reset_device(self, index: int) -> None:
        device = self._machine.device(index)
        if device.references == 0:
            raise Refusal(Code.RT_INVALID_DEVICE, f"device {index} is not set")
        device.references -= 1
        if device.references == 0:
            leaks = self._leaks(device)
            self._close_all(device)
            if leaks:
                self._machine.misuses.refuse(
                    f"reset_device({index}) while it still has: " + "; ".join(leaks)
                )

    def reset_device_force(self, index: int) -> None:
        device = self._machine.device(index)
        device.references = 0
        self._close_all(device)

    def get_device(self) -> int:
        return self._machine.context().device.index

    def get_device_count(self) -> int:
        return len(self._machine.devices)

    def get_last_error(self, level: int) -> int:
        """Answer without a context, too."""
        return self._machine.take_failure()

    def get_run_mode(self) -> int:
        return ACL_HOST

    def create_context(self, index: int) -> int:
        context = self._open(self._machine.device(index), implicit=False)
        self._machine.current = context
        return context.handle

    def get_context(self) -> int:
        return self._machine.context().handle

    def set_context(self, handle: int) -> None:
        self._machine.current = self._machine.handles.get("context", handle)

    def destroy_context(self, handle: int) -> None:
        machine = self._machine
        context: Context = machine.handles.get("context", handle)
        if context.implicit:
            machine.misuses.refuse("destroy_context of a device's default context")
        if context.streams:
            machine.misuses.refuse(f"destroy_context while it has {len(context.streams)} streams")
        self._close(context)

    def get_device_utilization_rate(self, index: int) -> dict[str, object]:
        device = self._machine.device(index)
        return {
            "cube_utilization": device.busy_percent,
            "vector_utilization": device.busy_percent // 2,
            "aicpu_utilization": 0,
            "memory_utilization": -1,  # reserved
            "utilization_extend": 0,
        }

    def query_device_status(self, index: int) -> int:
        return int(self._machine.device(index).abnormal)

    def set_device_res_limit(self, index: int, kind: int, value: int) -> None:
        limits = self._machine.device(index).limits
        if not 0 < value <= limits.get(kind, 0):
            raise Refusal(Code.RT_PARAM_INVALID, f"{value} cores of kind {kind}, of {limits}")
        limits[kind] = value

    def device_can_access_peer(self, index: int, peer: int) -> int:
        return int(self._machine.device(index) is not self._machine.device(peer))

    def _open(self, device: Device, *, implicit: bool) -> Context:
        context = Context(device, implicit)
        context.handle = self._machine.handles.issue("context", context)
        context.default_stream = self._machine.new_stream(context)
        device.contexts.append(context)
        return context

    def _close(self, context: Context) -> None:
        for stream in [*context.streams, context.default_stream]:
            stream.discard()
            if stream.handle:
                self._machine.handles.release("stream", stream.handle)
        context.device.contexts.remove(context)
        self._machine.handles.release("context", context.handle)
        context.handle = 0

    def _close_all(self, device: Device) -> None:
        machine = self._machine
        for context in list(device.contexts):
            self._close(context)
        device.context = None
        for block in list(device.memory.space):
            device.memory.free(block)
        for number, model in list(machine.models.items()):
            if model.context.device is device:
                del machine.models[number]

    def _leaks(self, device: Device) -> list[str]:
        machine = self._machine
        here = f"device {device.index}"
        return [
            *(f"model {m}" for m in machine.models.values() if m.context.device is device),
            *(f"memory {block}" for block in machine.memory.live() if block.place == here),
            *(f"stream {stream}" for stream in device.streams),
            *("a context" for context in device.contexts if not context.implicit),
            *(
                f"{task.name} in flight"
                for task in machine.hazards.in_flight
                if task.stream.context.device is device
            ),
        ]
