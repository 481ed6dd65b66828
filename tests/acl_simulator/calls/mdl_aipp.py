"""`acl.mdl`: telling a model what to do with its images before it takes them (dynamic AIPP)."""

from dataclasses import dataclass, field

from acl_simulator.calls.mdl_datasets import Dataset, buffers_of
from acl_simulator.codes import Code
from acl_simulator.machine.hazards import writing
from acl_simulator.machine.loader import Loader
from acl_simulator.machine.machine import Machine
from acl_simulator.om_file import AIPP_INPUT
from acl_simulator.refusals import Refusal

__all__ = ["AippCalls"]

RGB888 = 3
WRITTEN = 0x77


@dataclass(slots=True, eq=False)
class Aipp:
    """Parameters for so many images."""

    rows: int
    format: int = 1
    size: tuple[int, int] = (0, 0)
    mean: dict[int, tuple[float, ...]] = field(default_factory=dict)
    scale: dict[int, tuple[float, ...]] = field(default_factory=dict)


class AippCalls:
    """One machine's calls; of what they can say, format, size, mean and scale are simulated."""

    def __init__(self, machine: Machine, loader: Loader) -> None:
        self._machine = machine
        self._loader = loader

    def create_aipp(self, rows: int) -> int:
        if rows == 0:
            raise Refusal(Code.INVALID_PARAM, "AIPP for 0 images")
        return self._machine.handles.issue("aipp", Aipp(rows))

    def destroy_aipp(self, handle: int) -> None:
        self._machine.handles.release("aipp", handle)

    def set_aipp_input_format(self, handle: int, number: int) -> None:
        self._aipp(handle).format = number

    def set_aipp_src_image_size(self, handle: int, width: int, height: int) -> None:
        self._aipp(handle).size = width, height

    def set_aipp_csc_params(
        self,
        handle: int,
        on: int,
        r0c0: int,
        r0c1: int,
        r0c2: int,
        r1c0: int,
        r1c1: int,
        r1c2: int,
        r2c0: int,
        r2c1: int,
        r2c2: int,
        out0: int,
        out1: int,
        out2: int,
        inn0: int,
        inn1: int,
        inn2: int,
    ) -> None:
        self._aipp(handle)

    def set_aipp_rbuv_swap_switch(self, handle: int, on: int) -> None:
        self._aipp(handle)

    def set_aipp_ax_swap_switch(self, handle: int, on: int) -> None:
        self._aipp(handle)

    def set_aipp_crop_params(
        self, handle: int, on: int, left: int, top: int, width: int, height: int, row: int
    ) -> None:
        self._row(handle, row)

    def set_aipp_padding_params(
        self, handle: int, on: int, top: int, bottom: int, left: int, right: int, row: int
    ) -> None:
        self._row(handle, row)

    def set_aipp_dtc_pixel_mean(
        self, handle: int, a: int, b: int, c: int, d: int, row: int
    ) -> None:
        self._row(handle, row).mean[row] = float(a), float(b), float(c)

    def set_aipp_dtc_pixel_min(
        self, handle: int, a: float, b: float, c: float, d: float, row: int
    ) -> None:
        self._row(handle, row)

    def set_aipp_pixel_var_reci(
        self, handle: int, a: float, b: float, c: float, d: float, row: int
    ) -> None:
        self._row(handle, row).scale[row] = a, b, c

    def set_input_aipp(self, number: int, dataset: int, at: int, handle: int) -> None:
        machine = self._machine
        model, aipp = self._loader.find(number), self._aipp(handle)
        inputs: Dataset = machine.handles.get("dataset", dataset)
        names = [tensor.name for tensor in model.om.inputs]
        if at >= len(names) or names[at] != AIPP_INPUT:
            raise Refusal(Code.INVALID_PARAM, f"input {at} of {names} is not {AIPP_INPUT}")
        _, height, width, _ = model.om.shapes.fill(model.om.largest)["x"]
        if (aipp.size, aipp.format) != ((width, height), RGB888):
            raise Refusal(
                Code.INVALID_PARAM,
                f"AIPP of {aipp.size} in format {aipp.format}, the model wants {width, height}",
            )
        buffer = buffers_of(machine, inputs)[at]
        use = writing(buffer.address, buffer.size, f"{AIPP_INPUT} of {model}")
        machine.hazards.touch("setting AIPP", model.whole(), use)
        machine.memory.view(buffer.address, buffer.size)[:] = WRITTEN
        inputs.aipp = aipp.mean.get(0, (0.0,) * 3), aipp.scale.get(0, (1.0,) * 3)

    def _aipp(self, handle: int) -> Aipp:
        return self._machine.handles.get("aipp", handle)

    def _row(self, handle: int, row: int) -> Aipp:
        aipp = self._aipp(handle)
        if not 0 <= row < aipp.rows:
            raise Refusal(Code.INVALID_PARAM, f"image {row} of {aipp.rows}")
        return aipp
