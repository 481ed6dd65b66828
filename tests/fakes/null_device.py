"""The null device with memory that runs out, faults on request, and counts of all that happens.

It takes the place of the package's own in this process (`use_here`), and in the executors that
`EXECUTORS`, an environment, has started. A model file may say, beside what the package's reads:

    "weights_bytes": 4096, "workspace_bytes": {"8x64": 2048, "*": 256},
    "faults": [{"on": "run", "do": "die", "value": 666}]

weights_bytes    what it takes of the device's memory while it is loaded
workspace_bytes  scratch of a run, see `Scratch`; one byte per input element if not given
faults           see `Fault`
"""

import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fakes.null_faults import Fault, Faults, check_there
from fakes.null_scratch import DeviceMemory, Scratch
from ge_backend.device import base
from ge_backend.device.base import NO_POOL, MemoryInfo
from ge_backend.engines.null import device as plain

__all__ = ["EXECUTORS", "Counts", "Fault", "NullDevice", "NullGraph", "use_here"]

PYTHON = str(Path(__file__).resolve().parent / "null_python" / "python")
EXECUTORS = {"GE_PYTHON": PYTHON, "TEST_PYTHON": sys.executable}


def use_here():
    """Open this device wherever `null` is asked for in this process."""
    base.DEVICE_KINDS["null"] = f"{__name__}:{NullDevice.__name__}"


@dataclass(slots=True)
class Counts:
    """What happened on a device, in all its graphs.

    Attributes:
        bytes_in, bytes_out: of inputs read and outputs given, BYTES elements not counted.
        running, most_running: runs in flight, now and at most.
        scratch, most_scratch: bytes of scratch that runs in flight need, now and at most.
        overwritten: runs whose scratch somebody else wrote into.
        exclusive_runs: runs that were told they had the device for themselves.
    """

    loads: int = 0
    closes: int = 0
    compiles: int = 0
    prepares: int = 0
    runs: int = 0
    exclusive_runs: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    running: int = 0
    most_running: int = 0
    scratch: int = 0
    most_scratch: int = 0
    overwritten: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **changes):
        """Add to some counts at once."""
        with self.lock:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)
            self.most_running = max(self.most_running, self.running)
            self.most_scratch = max(self.most_scratch, self.scratch)


class NullDevice(plain.NullDevice):
    """A device with as many lanes and as much memory as asked for, and faults on request.

    Attributes:
        counts: what happened so far.
        faults: what will go wrong; the faults of a model file are its graph's own.
        store: its memory, where weights, scratch and the pool are.
    """

    def __init__(self, *, index=0, lanes=0, memory_bytes=2**30):
        super().__init__(index=index, lanes=lanes)
        self.counts = Counts()
        self.faults = Faults()
        self.store = DeviceMemory(memory_bytes)

    @classmethod
    def open(cls, index, *, lanes=0):
        """Return a new device; every index exists, unless `GE_NULL_GONE` says otherwise."""
        check_there(index, os.environ)
        return cls(index=index, lanes=lanes)

    def inject(self, fault):
        """Let something go wrong from now on, in every graph of the device."""
        self.faults.add(fault)

    def reserve(self, nbytes):
        """Set the pool aside, full of poison."""
        if nbytes:
            self.store.reserve(nbytes)
        return nbytes

    def load(self, source, workspace=NO_POOL):
        """Load a `.null` file."""
        graph = NullGraph(plain.read_model(source.path), self, workspace, source.path)
        self.counts.add(loads=1)
        return graph

    def memory(self):
        """Return what weights and the pool have left."""
        return MemoryInfo(free_bytes=self.store.free_bytes, total_bytes=self.store.total_bytes)


class NullGraph(plain.NullGraph):
    """A graph that counts, fails when it is told to, and gives wrong results of spoilt scratch."""

    def __init__(self, document, device, workspace, path):
        super().__init__(document, path)
        self._device = device
        self._faults = Faults()
        for fault in document.get("faults", ()):
            self._faults.add(Fault.read(fault, path))
        self._strike("load", {})
        self._weights_bytes = int(document.get("weights_bytes", 0))
        device.store.take(self._weights_bytes, f"the weights of {path}")
        try:
            self._scratch = Scratch(
                document.get("workspace_bytes"),
                compiled=self.shape_policy.prepared,
                memory=device.store,
                workspace=workspace,
                path=path,
            )
        except BaseException:
            device.store.give_back(self._weights_bytes)
            raise

    def compile(self, shapes):
        """Count it, and take the scratch of the largest."""
        if self.signature.inputs:
            first = self.signature.inputs[0].name
            self._scratch.compile([one[first] for one in shapes if first in one])
        self._device.counts.add(compiles=1)

    def prepare(self, inputs):
        """Count it, and prepare."""
        self._strike("prepare", inputs)
        super().prepare(inputs)
        self._device.counts.add(prepares=1)

    def workspace_bytes(self, shapes):
        """Return what the model file says, or else one byte for each input element."""
        if self._scratch.known:
            return self._scratch.need(shapes.get(self.signature.inputs[0].name, ()))
        return super().workspace_bytes(shapes)

    def run(self, inputs, outputs, *, exclusive):
        """Run once, and count it if that went well."""
        counts = self._device.counts
        needed = self.workspace_bytes({name: array.shape for name, array in inputs.items()})
        counts.add(running=1, scratch=needed)
        try:
            results = super().run(inputs, outputs, exclusive=exclusive)
        finally:
            counts.add(running=-1, scratch=-needed)
        counts.add(
            runs=1,
            exclusive_runs=int(exclusive),
            bytes_in=sum(array.nbytes for array in inputs.values()),
            bytes_out=sum(array.nbytes for array in results.values()),
        )
        return results

    def compute(self, inputs):
        """Return the outputs; wrong ones if somebody else wrote into this run's scratch."""
        mark = self._scratch.mark()
        intact = True
        try:
            self._strike("run", inputs)
            results = super().compute(inputs)
        finally:
            if mark is not None:
                intact = mark.end()
        if intact:
            return results
        self._device.counts.add(overwritten=1)
        return {name: _spoiled(value) for name, value in results.items()}

    def close(self):
        """Count it, and give the memory back."""
        self._scratch.close()
        self._device.store.give_back(self._weights_bytes)
        self._device.counts.add(closes=1)

    def _strike(self, event, inputs):
        """Let the faults of graph and device happen that are due now."""
        for faults in (self._faults, self._device.faults):
            faults.strike(event, inputs, self._path)


def _spoiled(value):
    """Return other numbers."""
    return np.asarray(value + 1, value.dtype) if value.dtype.kind in "iuf" else value
