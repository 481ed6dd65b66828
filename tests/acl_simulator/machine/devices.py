"""Devices and contexts."""

from dataclasses import dataclass, field

from acl_simulator.machine.memory import DeviceMemory
from acl_simulator.machine.streams import Stream

__all__ = ["SOCS", "Context", "Device", "Soc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Soc:
    """What differs between chips: cores by kind (0 cube, 1 vector) and streams per device."""

    cube_cores: int
    vector_cores: int
    streams: int


SOCS = {
    "Ascend910B3": Soc(cube_cores=20, vector_cores=40, streams=1984),
    "Ascend910B4": Soc(cube_cores=20, vector_cores=40, streams=1984),
    "Ascend910_9382": Soc(cube_cores=24, vector_cores=48, streams=1984),
    "Ascend310P3": Soc(cube_cores=8, vector_cores=7, streams=1024),
    "Ascend310B1": Soc(cube_cores=1, vector_cores=1, streams=512),
    "Ascend950": Soc(cube_cores=32, vector_cores=64, streams=1984),
}


@dataclass(slots=True, eq=False)
class Context:
    """One context of a device: its streams, and the one that stream 0 stands for."""

    device: "Device"
    implicit: bool
    handle: int = 0
    default_stream: Stream | None = None
    streams: list[Stream] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Device:
    """One device.

    Attributes:
        references: `set_device` calls not yet undone by `reset_device`.
        context: the default one, while the device is set.
        contexts: all of them.
        limits: cores by kind that its streams may use.
        abnormal: its driver says that it cannot be used.
        busy_percent: what it says of its cube cores.
    """

    index: int
    memory: DeviceMemory
    limits: dict[int, int]
    references: int = 0
    context: Context | None = None
    contexts: list[Context] = field(default_factory=list)
    abnormal: bool = False
    busy_percent: int = 0

    @property
    def streams(self) -> list[Stream]:
        """The streams of all contexts, default ones not counted."""
        return [stream for context in self.contexts for stream in context.streams]
