"""What one run of a model does on its device, at its start and at its end.

It scribbles over all of its work memory, keeps its inputs there while it computes, and scribbles
again when it ends: two runs that share work memory at the same time spoil each other's results.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from acl_simulator.codes import Code
from acl_simulator.graphs import Graph
from acl_simulator.machine.address_space import align_up
from acl_simulator.machine.loaded import LoadedModel
from acl_simulator.machine.machine import Machine
from acl_simulator.machine.streams import Work
from acl_simulator.om_file import AIPP_INPUT, ALIGNMENT, GEAR_INPUT, Tensor, size_of
from acl_simulator.refusals import Refusal
from acl_simulator.shapes import Dims

__all__ = ["Kernel", "Shaped", "decode_gear", "encode_gear"]

SCRIBBLE = 0x5A
NARROW, WIDE = 4, 8  # bytes of one value in a gear buffer


@dataclass(frozen=True, slots=True)
class Shaped:
    """The shapes of a run's inputs, what it computes, and the gear that was set for it."""

    dims: dict[str, Dims]
    graph: Graph
    gear: Dims | None = None


class Kernel:
    """One run.

    Args:
        machine: what it runs on.
        model: what runs.
        shaped: in which shapes.
        inputs: every input with its address and its buffer's size; size 0: nothing is given.
        write: takes the results in the order of the outputs.
        work: address and size of its work memory.
    """

    def __init__(
        self,
        machine: Machine,
        model: LoadedModel,
        shaped: "Shaped",
        inputs: Sequence[tuple[Tensor, int, int]],
        write: Callable[[list[np.ndarray]], None],
        work: tuple[int, int],
    ) -> None:
        self._machine = machine
        self._model = model
        self._dims = shaped.dims
        self._gear = shaped.gear
        self._graph = shaped.graph
        self._inputs = inputs
        self._write = write
        self._work_at, self._work_size = work
        self._kept: dict[str, bytes] = {}
        self._code = 0

    def begin(self, work: Work) -> None:
        """Take the inputs; tell `work` if the run is to hang."""
        fault = self._machine.faults.take(f"kernel.{self._model.om.name}")
        if fault is not None:
            self._code = fault.code
            work.duration_ms += fault.duration_ms
        self._check_gear()
        self._scribble()
        for tensor, source, kept in self._places():
            if source and kept.size:
                kept[:] = self._machine.memory.view(source, kept.size)
            self._kept[tensor.key] = bytes(kept)

    def finish(self) -> None:
        """Compute from what the work memory holds by now, and write the results.

        Raises:
            Refusal: the run fails, because of its inputs or because the test asked for that.
        """
        try:
            inputs = {tensor.key: self._read(tensor, kept) for tensor, _, kept in self._places()}
            if self._code:
                raise Refusal(self._code, f"run of {self._model}: a fault that the test asked for")
            self._write(self._compute(inputs))
            self._machine.executions.append((self._model.om.name, self._dims))
            self._machine.runs[self._model.om.name] += 1
        finally:
            self._scribble()

    def _check_gear(self) -> None:
        """What the run reads in the gear buffer has to be the gear that was set."""
        gear = self._gear
        if gear is None:
            return
        _, address, room = self._inputs[-1]
        raw = bytes(self._machine.memory.view(address, len(encode_gear(gear, room))))
        if decode_gear(raw, len(gear)) != gear:
            self._machine.misuses.refuse(
                f"run of {self._model}: gear {gear} is set, its buffer says "
                f"{decode_gear(raw, len(gear))}"
            )

    def _places(self) -> list[tuple[Tensor, int, np.ndarray]]:
        """Return each input, its address (0: nothing is given), its place in the work memory."""
        places, at = [], self._work_at
        for tensor, address, given in self._inputs:
            if tensor.name in {GEAR_INPUT, AIPP_INPUT}:
                continue
            size = size_of(tensor.dtype, self._dims[tensor.key])
            place = self._machine.memory.view(at, size) if size else np.empty(0, np.uint8)
            places.append((tensor, address if given else 0, place))
            at = align_up(at + size, ALIGNMENT)
        return places

    def _read(self, tensor: Tensor, kept: np.ndarray) -> np.ndarray:
        raw = bytes(kept)
        if raw != self._kept[tensor.key]:
            self._machine.misuses.note(f"run of {self._model}: its work memory was overwritten")
        return np.frombuffer(raw, tensor.numpy).reshape(self._dims[tensor.key])

    def _compute(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        try:
            with np.errstate(all="ignore"):
                results = self._graph.compute(inputs, self._weights())
        except (IndexError, ValueError) as error:
            raise Refusal(Code.AICORE_EXCEPTION, f"run of {self._model}: {error}") from error
        return [np.asarray(results[tensor.key]) for tensor in self._model.om.outputs]

    def _weights(self) -> dict[str, np.ndarray]:
        om, weights = self._model.om, {}
        for name, offset in om.weight_offsets().items():
            like = om.weights[name]
            raw = bytes(self._machine.memory.view(self._model.weights + offset, like.nbytes))
            weights[name] = np.frombuffer(raw, like.dtype).reshape(like.shape)
        return weights

    def _scribble(self) -> None:
        if self._work_size:
            self._machine.memory.view(self._work_at, self._work_size)[:] = SCRIBBLE


def encode_gear(gear: Dims, room: int) -> bytes:
    """Return a gear as the runtime writes it into `room` bytes: wide values if they fit."""
    return struct.pack(f"<{len(gear)}{'Q' if room >= WIDE * len(gear) else 'I'}", *gear)


def decode_gear(raw: bytes, count: int) -> Dims:
    """Return the gear of `count` values that `encode_gear` made."""
    return struct.unpack(f"<{count}{'Q' if len(raw) == WIDE * count else 'I'}", raw)
