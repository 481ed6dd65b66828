"""Loading: from a file's bytes to a model with its memory on a device."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acl_simulator.codes import Code, Policy
from acl_simulator.machine.address_space import Block, align_up
from acl_simulator.machine.hazards import Access, reading, writing
from acl_simulator.machine.loaded import LoadedModel
from acl_simulator.machine.machine import Machine
from acl_simulator.machine.memory import ALIGNMENT
from acl_simulator.om_file import Om, read_om
from acl_simulator.refusals import Refusal

__all__ = ["Given", "Loader"]


@dataclass(frozen=True, slots=True)
class Given:
    """Memory that the caller gives for a model; address 0: the runtime takes its own."""

    address: int = 0
    size: int = 0


class Loader:
    """Reads model files and places models on one machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._next = 1

    def read_path(self, path: str) -> Om:
        """Return the model in a file."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise Refusal(
                Code.GE_MODEL_PATH, f"the model {path!r} cannot be read: {error}"
            ) from None
        return read_om(data)

    def read_bytes(self, address: int, size: int) -> Om:
        """Return the model whose file lies in host memory."""
        return read_om(self.host_bytes(address, size))

    def host_bytes(self, address: int, size: int) -> bytes:
        """Return bytes of host memory that the caller points to."""
        if address == 0:
            raise Refusal(Code.INVALID_PARAM, "the model's address is null")
        if size == 0:
            raise Refusal(Code.GE_MODEL_DATA_SIZE, "the model has 0 bytes")
        if self._machine.memory.device_of(address):
            self._machine.misuses.refuse(f"a model is loaded from device memory, {address:#x}")
        return ctypes.string_at(address, size)

    def load(self, om: Om, work: Given = Given(), weights: Given = Given()) -> LoadedModel:
        """Place a model on the current device.

        Raises:
            Refusal: another chip's model, too little memory given, or too little left.
        """
        machine = self._machine
        context = machine.context()
        if om.soc != machine.soc:
            raise Refusal(
                Code.GE_LOAD, f"the model is built for {om.soc}, this device is a {machine.soc}"
            )
        if machine.vnpu and not om.vnpu:
            raise Refusal(Code.TASK_UNSUPPORTED, f"a type of task of {om.name} is not supported")
        if om.is_v2:
            work = Given()  # such models take work memory as they run, whatever is given
        blocks: list[Block] = []
        try:
            work_at, held_work = self._place(om, "work", work, om.work_bytes, blocks)
            weights_at, held_weights = self._place(om, "weight", weights, om.weight_bytes, blocks)
            if held_work and held_weights and held_work.conflicts(held_weights):
                machine.misuses.refuse(f"{om.name}: its work memory overlaps its weights")
            holds = [access for access in (held_work, held_weights) if access]
            self._refuse_overlaps(om, holds)
            self._write_weights(om, weights_at)
        except BaseException:
            for block in blocks:
                context.device.memory.free(block)
            raise
        model = LoadedModel(
            number=self._next,
            om=om,
            context=context,
            work=work_at,
            weights=weights_at,
            holds=holds,
            blocks=blocks,
        )
        self._next += 1
        machine.models[model.number] = model
        return model

    def unload(self, number: int) -> None:
        """Take a model off its device, with what the runtime allocated for it."""
        machine = self._machine
        model = self.find(number)
        if machine.context() is not model.context:
            raise Refusal(Code.RT_MODEL_CONTEXT, f"model {model} was loaded in another context")
        machine.hazards.touch("unload", model.whole())
        for block in model.blocks:
            model.context.device.memory.free(block)
        del machine.models[number]

    def find(self, number: int) -> LoadedModel:
        """Return a loaded model.

        Raises:
            Refusal: there is none with this id.
        """
        model = self._machine.models.get(number)
        if model is None:
            raise Refusal(Code.GE_MODEL_ID, f"model id {number} is unknown")
        return model

    def _place(
        self, om: Om, kind: str, given: Given, needed: int, blocks: list[Block]
    ) -> tuple[int, Access | None]:
        """Return where a model's work or weight memory is, and what others must keep off."""
        what = f"the {kind} memory"
        use = writing if kind == "work" else reading
        device = self._machine.context().device.memory
        if given.address == 0:
            if needed == 0:
                return 0, None
            block = device.allocate(
                needed,
                Policy.HUGE_FIRST,
                owner=f"the {kind} memory of {om.name}",
                refusal=Code.GE_MEMORY_ALLOCATION,
            )
            blocks.append(block)
            return block.start, use(block.start, needed, what)
        if given.size < needed:
            raise Refusal(
                Code.GE_PARAM_INVALID,
                f"{om.name} needs {needed} bytes of {kind} memory, {given.size} are given",
            )
        if given.address % ALIGNMENT:
            self._machine.misuses.refuse(f"{what} of {om.name} is not 64-byte aligned")
        if self._machine.memory.device_of(given.address) is not device:
            self._machine.misuses.refuse(f"{what} of {om.name} is not on device {device.index}")
        device.space.view(given.address, given.size)
        room = align_up(needed, 32) + device.padding if needed else 0
        block = device.space.find(given.address)
        if given.address + room > block.start + block.cost:
            self._machine.misuses.refuse(
                f"{what} of {om.name} takes {room} bytes (rounded up, and {device.padding} behind), "
                f"which end after {block}"
            )
        return given.address, use(given.address, room, what)

    def _refuse_overlaps(self, om: Om, holds: list[Access]) -> None:
        """Refuse weights where another model works, and work memory over another one's weights."""
        for model in self._machine.models.values():
            for theirs in model.holds:
                for ours in holds:
                    if ours.writes != theirs.writes and ours.conflicts(theirs):
                        self._machine.misuses.refuse(
                            f"{ours.what} of {om.name} overlaps {theirs.what} of {model}"
                        )

    def _write_weights(self, om: Om, address: int) -> None:
        if not om.weight_bytes:
            return
        machine = self._machine
        image = np.zeros(om.weight_bytes, np.uint8)
        for name, offset in om.weight_offsets().items():
            raw = np.frombuffer(om.weights[name].tobytes(), np.uint8)
            image[offset : offset + len(raw)] = raw
        memory = machine.memory.view(address, om.weight_bytes)
        if np.array_equal(memory, image):
            return  # the same model once more, on the same weights
        written = writing(address, om.weight_bytes, f"the weights of {om.name}, being loaded,")
        for model in machine.models.values():
            for theirs in model.holds:
                if theirs.conflicts(written):
                    machine.misuses.refuse(f"{written.what} overwrite {theirs.what} of {model}")
        machine.hazards.touch("load", written)
        memory[:] = image
