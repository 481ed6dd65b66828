"""The stand-in for the module `acl`: its calls as attributes, and what tests ask it beside that."""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from acl_simulator.calls.entries import entries
from acl_simulator.calls.mdl_aipp import AippCalls
from acl_simulator.calls.mdl_bundles import BundleCalls
from acl_simulator.calls.mdl_config import ConfigCalls
from acl_simulator.calls.mdl_datasets import DatasetCalls
from acl_simulator.calls.mdl_describe import DescribeCalls
from acl_simulator.calls.mdl_execute import ExecuteCalls
from acl_simulator.calls.mdl_gears import GearCalls
from acl_simulator.calls.mdl_load import LoadCalls
from acl_simulator.calls.rt_copies import CopyCalls
from acl_simulator.calls.rt_devices import DeviceCalls
from acl_simulator.calls.rt_events import EventCalls
from acl_simulator.calls.rt_memory import MemoryCalls
from acl_simulator.calls.rt_streams import StreamCalls
from acl_simulator.calls.system import SystemCalls
from acl_simulator.calls.tensors import TensorCalls
from acl_simulator.calls.util import UtilCalls
from acl_simulator.faults import Fault
from acl_simulator.machine.address_space import Block
from acl_simulator.machine.loader import Loader
from acl_simulator.machine.machine import Machine
from acl_simulator.machine.streams import Times
from acl_simulator.refusals import Misuses
from acl_simulator.report import Reporter

__all__ = ["Simulator"]

DEFAULT_HBM_BYTES = 256 << 20


class Simulator:
    """One simulated process: `sim.init()`, `sim.rt.malloc(…)` and so on, as in the module `acl`.

    Args:
        devices: how many.
        hbm_bytes: memory of each.
        soc: the chip; it decides padding, cores, streams, and which models load.
        delay_s: real seconds after which work on a stream runs by itself; None: it runs when
            somebody waits for it, and not before.
        time_scale: real seconds that a second of simulated computing takes.
        owned_elsewhere: torch_npu, say, initialised ACL already: `init` answers 100002.
        without: calls that this version of CANN lacks, such as `rt.set_stream_res_limit`.
        plans_ranges: `query_size` and memory of the caller's work for range models, too, which the
            documents forbid and only new versions answer.
        vnpu: the device is a part of one, on which models that are not built for such do not load.

    Attributes:
        rt, mdl, util: namespaces of calls.
    """

    def __init__(
        self,
        *,
        devices: int = 1,
        hbm_bytes: int = DEFAULT_HBM_BYTES,
        soc: str = "Ascend910B3",
        delay_s: float | None = None,
        time_scale: float = 0.0,
        owned_elsewhere: bool = False,
        without: Collection[str] = (),
        vnpu: bool = False,
        plans_ranges: bool = True,
    ) -> None:
        machine = Machine(
            devices=devices,
            hbm_bytes=hbm_bytes,
            soc=soc,
            times=Times(delay_s=delay_s, scale=time_scale),
            owned_elsewhere=owned_elsewhere,
            vnpu=vnpu,
            plans_ranges=plans_ranges,
        )
        loader = Loader(machine)
        system = [SystemCalls(machine), TensorCalls(machine)]
        rt = [DeviceCalls, StreamCalls, MemoryCalls, CopyCalls, EventCalls]
        mdl = [DatasetCalls(machine)]
        families = LoadCalls, DescribeCalls, GearCalls, AippCalls, ExecuteCalls, ConfigCalls
        for family in (*families, BundleCalls):
            mdl.append(family(machine, loader))
        self._machine = machine
        self.rt = entries(machine, "rt.", [family(machine) for family in rt], without)
        self.mdl = entries(machine, "mdl.", mdl, without)
        self.util = entries(machine, "util.", [UtilCalls(machine)], without)
        vars(self).update(vars(entries(machine, "", system, without)))

    def module(self) -> dict[str, object]:
        """Return what the module `acl` has: calls and namespaces by name."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @property
    def misuses(self) -> Misuses:
        """All misuses so far, whether or not anybody saw the exception."""
        return self._machine.misuses

    @property
    def calls(self) -> Counter[str]:
        """How often each call was made: `sim.calls["rt.malloc"]`."""
        return self._machine.calls

    @property
    def uploads(self) -> int:
        """How many copies from the host to a device there were."""
        return self._machine.uploads

    @property
    def downloads(self) -> int:
        """How many copies from a device to the host there were."""
        return self._machine.downloads

    @property
    def uploaded_bytes(self) -> int:
        """Bytes copied from the host to devices."""
        return self._machine.uploaded_bytes

    @property
    def downloaded_bytes(self) -> int:
        """Bytes copied from devices to the host."""
        return self._machine.downloaded_bytes

    @property
    def executions(self) -> list[tuple[str, dict[str, tuple[int, ...]]]]:
        """(model's name, its input shapes) of every run that ended well, in order."""
        return list(self._machine.executions)

    def allocations(self) -> list[Block]:
        """Return what the caller has allocated, on devices and pinned, and not freed."""
        return self._machine.memory.live()

    def in_flight(self) -> list[str]:
        """Return the names of the tasks that nobody has synchronised with."""
        return [task.name for task in self._machine.hazards.in_flight]

    def fail(
        self,
        name: str,
        code: int,
        *,
        after: int = 0,
        times: int | None = 1,
        message: str = "",
    ) -> None:
        """Let a call fail: `rt.malloc`, `kernel.<model>` for a run that fails on the device, `mdl.*`.

        Args:
            name: the call, or a pattern.
            code: what `ret` becomes; for a kernel, what the next synchronisation returns.
            after: so many calls succeed first.
            times: so many fail then; None for all.
            message: what `get_recent_err_msg` says.
        """
        fault = Fault(name=name, code=code, after=after, times=times, message=message)
        self._machine.faults.add(fault)

    def hang(self, name: str = "kernel.*", *, after: int = 0, times: int | None = 1) -> None:
        """Let a run never end: whoever waits gets 507046 after his timeout."""
        self._machine.faults.add(Fault(name=name, after=after, times=times, hang=True))

    def expect(self, faults: Iterable[Mapping[str, Any]]) -> None:
        """Plan faults given as the arguments of `fail`; with `"hang": True` the runs never end."""
        self._machine.faults.add_all(faults)

    def take_faults_from(self, inbox: Path) -> None:
        """Take more faults, as `expect` does, from a JSON file whenever it is there."""
        self._machine.faults.inbox = inbox

    def report_to(self, path: Path) -> None:
        """Keep a report of what happens in a JSON file (`report.py`)."""
        self._machine.after_call = Reporter(self._machine, path).after

    def tell(self, index: int = 0, *, abnormal: bool = False, busy_percent: int = 0) -> None:
        """Let a device say this of itself."""
        device = self._machine.devices[index]
        device.abnormal, device.busy_percent = abnormal, busy_percent

    @property
    def config(self) -> str:
        """The file that `init` was given; "" for none."""
        return self._machine.config

    @property
    def priorities(self) -> list[int]:
        """Of the models that are loaded, by age."""
        return [model.priority for model in self._machine.models.values()]

    @property
    def last_failure(self) -> int:
        """The code of the calling thread's last failure, which stays: `aclrtPeekAtLastError`."""
        return self._machine.last_failure

    def heal(self) -> None:
        """Forget all faults that have not happened."""
        self._machine.faults.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing runs on any stream; whoever waits, waits."""
        machine = self._machine
        machine.times.paused = True
        try:
            yield
        finally:
            with machine.turn:
                machine.times.paused = False
                machine.turn.notify_all()

    def wait_until(self, holds: Callable[[], bool], timeout_s: float = 60.0) -> bool:
        """Wait until something about the streams holds; return False if it never does."""
        with self._machine.turn:
            return self._machine.turn.wait_for(holds, timeout_s)

    def check(self) -> None:
        """Raise the first misuse; every test ends with this."""
        self._machine.memory.host.check()
        if self.misuses:
            raise self.misuses[0]
