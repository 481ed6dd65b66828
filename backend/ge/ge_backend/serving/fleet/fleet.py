"""The devices that a model instance runs on, and which of them runs what.

A batch's runs are spread by cost (`assign.py`), and in flight on all devices at once
(`attempt.py`). With one device the way is the same, without anything to choose.

When an executor dies, what it had not answered is placed again: one run at a time, each alone on
its device, on another device if there is one, else on the same one, as soon as it is back. So a run
that kills executors is found out and fails, and its neighbours, here and in other stubs, do not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from ge_backend.deadline import earliest, left_s, over
from ge_backend.device.failures import without_folders
from ge_backend.errors import (
    DeadlineExceeded,
    DeviceUnavailable,
    ExecutorLost,
    GeError,
    Status,
    error_from_name,
)
from ge_backend.executor.client.reopening import GRAPHS, Replay
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.messages import TensorMemory
from ge_backend.serving.fleet.assign import DeviceLoad, assign
from ge_backend.serving.fleet.attempt import Attempt, Placed, died_again, failed
from ge_backend.serving.fleet.device_state import DeviceState
from ge_backend.serving.fleet.fleet_device import FleetDevice

__all__ = ["Fleet"]


class Fleet:
    """One session per device, used by one thread.

    Args:
        sessions: by device name, at least one; they become the fleet's.
        replay: what is tried again, and how often, when an executor has died.
    """

    def __init__(self, sessions: Mapping[str, Session], replay: Replay = GRAPHS) -> None:
        self._replay = replay
        self._changed = threading.Condition()
        self._devices = [
            FleetDevice(name, session, self._changed, replay) for name, session in sessions.items()
        ]
        self._taking_turns: Sequence[FleetDevice] = ()
        self._given_ns: dict[FleetDevice, float] = {}

    @property
    def sessions(self) -> list[Session]:
        """All sessions. They hold the same graph; the first one speaks for them."""
        return [device.session for device in self._devices]

    @property
    def ready(self) -> bool:
        """Whether some device can be used, or may be in a moment.

        One whose driver says that it is abnormal cannot, though it may still answer.
        """
        return any(
            device.failure is None and _state(device).health.abnormal != 1
            for device in self._devices
        )

    def states(self) -> list[DeviceState]:
        """Return how each device is now; may be asked from any thread."""
        return list(map(_state, self._devices))

    def place(
        self,
        waiting: Mapping[int, float],
        deadlines: Sequence[int] = (),
        *,
        tried: int = 0,
        solo: bool = False,
    ) -> Attempt:
        """Place runs on devices; if none is up, those that may be in a moment are waited for.

        Args:
            waiting: estimated nanoseconds of each run that has not ended, by its index, in the
                order of submission.
            deadlines: of each run, by its index; empty where none has one. Executors keep them;
                the fleet does while there is none, or none that shows life.
            tried: how many attempts with parts have had them before.
            solo: each runs with nothing beside it from the first time on, as what is repeated does.

        Returns:
            The attempt; without parts where runs only fail, be it that their time is over first.
        """
        if tried > self._replay.deaths:
            return Attempt(ended=failed(waiting, died_again("before it could be repeated")))
        devices = [device for device in self._devices if device.up]
        if not devices:
            known = dict(enumerate(deadlines))
            if late := self._late({index: known.get(index, 0) for index in waiting}):
                text = "the request's time was over before its device's executor was started anew"
                return Attempt(ended=failed(late, DeadlineExceeded(text), given_up=True))
            with self._changed:
                devices = [device for device in self._devices if device.up]
                if not devices:
                    return Attempt(ended=failed(waiting, self._unusable()))
        return Attempt(
            self._assign(waiting, devices),
            again=tried > 0,
            solo=solo or tried > self._replay.beside_others,
        )

    def here(self) -> FleetDevice | None:
        """Return the device whose executor is in this process, where it is the only one."""
        first, *others = self._devices
        return first if not others and first.up and first.session.runs_here else None

    def look_for_losses(self) -> None:
        """Give up the executors that have died since the last batch. No run is in flight."""
        for device in self._devices:
            if device.up and device.session.broken:
                device.lose(ExecutorLost("it has died since the last batch"))

    def retain_tensors(self, owner: str, buffer_bytes: Sequence[int] = ()) -> TensorMemory | None:
        """Let runs leave tensors on the device; see `Session.retain_tensors`. No run is in flight.

        Returns:
            How; None on several devices, where a later run may come to another one.
        """
        if len(self._devices) > 1:
            return None
        return self._devices[0].session.retain_tensors(owner, buffer_bytes)

    def free_tensors(self, keys: Sequence[int]) -> None:
        """Forget such tensors, of which no run is in flight."""
        if self._devices[0].up:
            self._devices[0].session.free_tensors(keys)

    def close(self) -> None:
        """Leave all executors, which free the graph if no other holds it."""
        for device in self._devices:
            device.close()

    def _late(self, deadlines: Mapping[int, int]) -> list[int]:
        """Wait until a device is up, or none may be soon; return runs whose time is over first."""
        first_ns = earliest(deadlines.values())
        with self._changed:
            if self._changed.wait_for(self._settled, left_s(first_ns, time.monotonic_ns())):
                return []
        now_ns = max(time.monotonic_ns(), first_ns)
        return [index for index, deadline_ns in deadlines.items() if over(deadline_ns, now_ns)]

    def _settled(self) -> bool:
        return any(device.up for device in self._devices) or not self.ready

    def _unusable(self) -> GeError:
        """Return a new error, because its receiver raises it."""
        source = self.sessions[0].source
        failures = [without_folders(str(device.failure), source.path) for device in self._devices]
        if len(failures) == 1:
            failure = self._devices[0].failure
            if failure is not None and failure.status is not Status.UNAVAILABLE:  # tried again
                return DeviceUnavailable(f"the model cannot be loaded again: {failures[0]}")
            return error_from_name(type(failure).__name__, failures[0])
        reasons = "; ".join(
            f"{device.name}: {text}" for device, text in zip(self._devices, failures, strict=True)
        )
        return DeviceUnavailable(f"all devices are lost, and tried again meanwhile: {reasons}")

    def _assign(self, waiting: Mapping[int, float], devices: Sequence[FleetDevice]) -> list[Placed]:
        """Return the devices that get something.

        The one place that says where a run goes. A run that must stay on a device, such as a step
        of a sequence whose state is there, would be placed here, before the others.
        """
        if len(devices) == 1:
            return [Placed(devices[0], tuple(waiting))]
        if devices != self._taking_turns:  # one that was away has nothing to make up for
            self._taking_turns, self._given_ns = devices, dict.fromkeys(devices, 0.0)
        loads = [
            DeviceLoad(seen.ns if (seen := d.session.outstanding) else 0, self._given_ns[d])
            for d in devices
        ]
        places = assign(tuple(waiting.values()), loads)
        parts: dict[FleetDevice, list[int]] = {}
        for (index, cost_ns), place in zip(waiting.items(), places, strict=True):
            parts.setdefault(devices[place], []).append(index)
            self._given_ns[devices[place]] += cost_ns
        return [Placed(device, indices) for device, indices in parts.items()]


def _state(device: FleetDevice) -> DeviceState:
    return DeviceState.of(device.name, device.session.outstanding, up=device.up)
