"""The seam between serving and hardware: what a device is, and what it loads.

No module above names an engine or a vendor. A `Device` loads a `GraphSource` and gives a
`Graph`; a graph reads host arrays (views of an arena) and writes host arrays. What only some
devices can do is a separate optional object, not a flag.
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from ge_backend.device.imports import importing
from ge_backend.errors import DeviceUnavailable, ModelError
from ge_backend.model.config.declared import NOTHING_DECLARED, Declared
from ge_backend.model.files.model_file import canonical, model_files, stamp_of
from ge_backend.tensors import ANY_SHAPE, Array, Shape, ShapePolicy, Signature

__all__ = [
    "DEVICE_KINDS",
    "NO_POOL",
    "PLAIN",
    "ROW_ERRORS",
    "CompiledAhead",
    "Device",
    "Graph",
    "GraphSource",
    "MemoryInfo",
    "NoPool",
    "Range",
    "Workspace",
    "open_device",
]


# Under this name a graph returns what is wrong with single rows; see `Graph.run`.
ROW_ERRORS = "ge.row_errors"
# A precision that no configuration names: as the file says, without what makes it fast. Answers are
# compared with it where no other engine reads a file.
PLAIN = "plain"

_Opened = TypeVar("_Opened")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSource:
    """What to load, and how: two equal sources on one device share one graph and its weights.

    Attributes:
        path: the model file; the end of its name says which engines can run it.
        stamp: changes when the file does, or any other that the model is made of, so that what
            was changed is another source.
        precision: `origin`, `fp32`, `bf16`, `fp16` or `int8`; or `PLAIN`, where the engine has it.
        engine: which of them does; "" leaves it to the order of the table.
        threads: CPU threads for one run; 0 lets the device measure and decide.
        options: (key, value) pairs for the engine, from `config.pbtxt`, sorted by key.
        declared: the tensors that `config.pbtxt` lists, for a file that says nothing of its own.
    """

    path: str
    stamp: str
    precision: str = "origin"
    engine: str = ""
    threads: int = 0
    options: tuple[tuple[str, str], ...] = ()
    declared: Declared = NOTHING_DECLARED

    @classmethod
    def of(
        cls,
        path: Path,
        *,
        precision: str = "origin",
        engine: str = "",
        threads: int = 0,
        options: tuple[tuple[str, str], ...] = (),
        declared: Declared = NOTHING_DECLARED,
    ) -> GraphSource:
        """Return the source for a file as it is now.

        Raises:
            ModelError: the model is made of several files, and one is missing or does not fit.
        """
        known = canonical(path, options)
        return cls(
            path=str(known),
            stamp=stamp_of(model_files(known, options)),
            precision=precision,
            engine=engine,
            threads=threads,
            options=options,
            declared=declared,
        )

    def files(self) -> tuple[Path, ...]:
        """Return the files that the model is made of, those that options name included.

        Raises:
            ModelError: as `of`.
        """
        return model_files(Path(self.path), self.options)

    def is_current(self) -> bool:
        """Whether the files are still those that the stamp was taken of."""
        try:
            return stamp_of(self.files()) == self.stamp
        except (OSError, ModelError):
            return False

    def unchanged(self, opened: Callable[[], _Opened]) -> Callable[[], _Opened]:
        """Return what opens the files once more, and refuses others than those that are there now.

        Raises:
            ModelError: they were changed since; raised by what is returned.
        """
        now = self
        with contextlib.suppress(OSError, ModelError):  # the engine says what is wrong with them
            now = replace(self, stamp=stamp_of(self.files()))

        def opened_again() -> _Opened:
            result = opened()
            if not now.is_current():
                raise ModelError(
                    f"{self.path} was changed after it was loaded; load the model again"
                )
            return result

        return opened_again


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """Bytes of the device's memory; for `cpu` the machine's."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Bytes `offset` to `end` of a device's workspace pool."""

    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.nbytes

    def overlaps(self, other: Range) -> bool:
        """Whether the two have a byte in common."""
        return self.offset < other.end and other.offset < self.end


class Workspace(Protocol):
    """One graph's place in its device's workspace pool.

    A graph asks as soon as it knows its need: an offline model when it is loaded, a compiled one
    after compiling. For engines that manage their own scratch the executor asks, with what it
    measured.
    """

    def place(self, nbytes: int) -> Range:
        """Return a range of at least `nbytes` for this graph, and give its former one back.

        Runs that have begun keep the former range until they end. A graph whose scratch never lies
        in the pool asks for 0 bytes when it is loaded; then nothing is measured against the pool.

        Raises:
            OutOfMemory: no such range can be had; says needed, available and who holds what.
        """


class NoPool:
    """The workspace where no pool was set aside: every graph has scratch of its own."""

    def place(self, nbytes: int) -> Range:
        """Return a range that begins at 0; nothing is shared."""
        return Range(offset=0, nbytes=nbytes)


NO_POOL = NoPool()


class Graph(Protocol):
    """A loaded model. One graph may be run from several threads at once.

    Attributes:
        signature: inputs and outputs, batch dimension included; empty where the file does not say.
        shape_policy: which shapes run.
        engine: what runs it, by its name in the engine table; "" where no table chose it.
        precision: what it is computed in, where that is another one than was asked for, as the
            processor or the file has none such; else "".
    """

    signature: Signature
    shape_policy: ShapePolicy = ANY_SHAPE
    engine: str = ""
    precision: str = ""

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Compile or capture for these inputs' shapes; the values are valid but arbitrary.

        Unless a graph says otherwise there is nothing to do: any shape runs.
        """
        del inputs

    def settle(self) -> None:
        """Wait until runs take as long as from then on, before they are measured.

        Unless a graph says otherwise they do from the first on. Others run meanwhile.
        """
        return

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the scratch bytes that one run with these input shapes needs; 0 if not known."""
        del shapes
        return 0

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once and return every output by name.

        Args:
            inputs: C-contiguous host arrays; BYTES as object arrays, BF16 as uint16. They belong to
                the caller and are not written.
            outputs: host arrays of the predicted shape to write results into, for those outputs
                whose shape the caller could predict. An output that has another shape, or is not
                named here, comes back as a fresh array that the caller owns.
            exclusive: nothing else runs or waits on the device, so the run may use all of it.

        Where the values of some rows cannot be used, such as text that is not UTF-8, and the others
        can, a graph may return the results of those and, under the name `ROW_ERRORS`, BYTES
        `[rows]`: what is wrong with each row, empty where nothing is. Those rows' requests fail.

        Raises:
            GraphFailed: the engine refused these inputs or broke; the device is well.
            OutOfMemory: the device's memory is used up.
        """

    def close(self) -> None:
        """Free the graph's memory; it is not used afterwards."""


@runtime_checkable
class CompiledAhead(Protocol):
    """What a graph may be whose engine compiles all shapes of a model at once, before the first."""

    def compile(self, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Make ready for these sets of input shapes, and no others, before each is prepared.

        Called again with more of them when buckets are learned; runs may be in flight meanwhile.

        Raises:
            ModelError: the compiler refuses the model or a shape, in its own words.
            OutOfMemory: the workspace pool has no room for it.
        """


class Device(Protocol):
    """One accelerator, opened. Owned by the executor; not used after `close`."""

    @property
    def name(self) -> str:
        """How configurations and logs call it: `cpu`, `cuda:0`, `npu:1`."""

    @property
    def chip(self) -> str:
        """What it computes with, which tells kinds of devices apart: `Ascend910B3`; "" of a CPU."""

    @property
    def lanes(self) -> int:
        """How many runs may be in flight at once."""

    def reserve(self, nbytes: int) -> int:
        """Set the memory of the workspace pool aside; once, before anything is loaded.

        Returns:
            The pool's size. 0: there is no pool, and the engines' scratch is not limited.

        Raises:
            OutOfMemory: the device has not that much left.
        """

    def load(self, source: GraphSource, workspace: Workspace = NO_POOL) -> Graph:
        """Load a model file; several may be loaded at once.

        `workspace` is the graph's place in the pool that `reserve` set aside.

        Raises:
            ModelError: the file is missing, corrupt, or of a kind this device does not run.
            OutOfMemory: weights or workspace do not fit.
            DeviceUnavailable: the engine for this kind of file is not installed.
        """

    def memory(self) -> MemoryInfo:
        """Return the device's free and total memory now."""

    def close(self) -> None:
        """Give the device back."""


# kind -> `module:class`; a module is imported only when a device of its kind is opened.
DEVICE_KINDS: Mapping[str, str] = {
    "cpu": "ge_backend.engines.kinds.cpu:CpuDevice",
    "cuda": "ge_backend.engines.kinds.cuda:CudaDevice",
    "npu": "ge_backend.engines.kinds.npu:NpuDevice",
    "null": "ge_backend.engines.null.device:NullDevice",
}


def open_device(name: str, *, lanes: int = 0) -> Device:
    """Open a device by kind and number: `cpu`, `null`, `cuda:0`, `npu:0`.

    `lanes` runs may be in flight at once; 0: as many as suit the device.

    Raises:
        DeviceUnavailable: the kind is unknown, the device is not there, or its library is missing.
    """
    kind, _, index = name.partition(":")
    if kind not in DEVICE_KINDS or (index and not index.isdecimal()):
        known = ", ".join(DEVICE_KINDS)
        raise DeviceUnavailable(f"device {name!r} is unknown; known kinds are {known}")
    with importing():
        found = pkgutil.resolve_name(DEVICE_KINDS[kind])
    device: Device = found.open(int(index or 0), lanes=lanes)
    return device
