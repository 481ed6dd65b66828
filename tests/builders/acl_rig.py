"""Using the `acl` simulator in few words, as a backend would at length."""

import ctypes
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from acl_simulator import Simulator, write_om
from acl_simulator.codes import DATA_TYPES

H2D, D2H, HUGE_FIRST, ANY = 1, 2, 0, -1


def ok(result):
    """Return the value(s) of a call that succeeded."""
    *values, ret = result if isinstance(result, tuple) else (result,)
    assert ret == 0
    return values[0] if len(values) == 1 else tuple(values) if values else None


def host_view(address: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


class Rig:
    """One device, one stream, and what a test wants of them in few words."""

    def __init__(self, sim: Simulator, folder: Path) -> None:
        self.sim = sim
        self.folder = folder
        ok(sim.rt.set_device(0))
        self.stream = ok(sim.rt.create_stream())

    def write(self, graph, shapes, name="model", **options) -> str:
        return str(write_om(self.folder / f"{name}.om", graph, shapes, **options))

    def load(self, graph, shapes, name="model", **options) -> int:
        return ok(self.sim.mdl.load_from_file(self.write(graph, shapes, name, **options)))

    def device(self, size: int) -> int:
        return ok(self.sim.rt.malloc(size, HUGE_FIRST))

    def pinned(self, size: int) -> tuple[int, np.ndarray]:
        address = ok(self.sim.rt.malloc_host(size))
        return address, host_view(address, size)

    def desc(self, model: int) -> int:
        handle = self.sim.mdl.create_desc()
        ok(self.sim.mdl.get_desc(handle, model))
        return handle

    def dataset(self, *buffers: tuple[int, int]) -> int:
        dataset = self.sim.mdl.create_dataset()
        for address, size in buffers:
            ok(self.sim.mdl.add_dataset_buffer(dataset, self.sim.create_data_buffer(address, size)))
        return dataset

    def datasets(self, model: int) -> tuple[int, int]:
        """Return datasets with a fresh buffer of the largest size for every input and output."""
        mdl, desc = self.sim.mdl, self.desc(model)
        ins = [mdl.get_input_size_by_index(desc, at) for at in range(mdl.get_num_inputs(desc))]
        outs = [mdl.get_output_size_by_index(desc, at) for at in range(mdl.get_num_outputs(desc))]
        return tuple(self.dataset(*((self.device(n), n) for n in sizes)) for sizes in (ins, outs))

    def upload(self, address: int, array: np.ndarray) -> None:
        array = np.ascontiguousarray(array)
        ok(self.sim.rt.memcpy(address, array.nbytes, array.ctypes.data, array.nbytes, H2D))

    def download(self, address: int, dtype, shape) -> np.ndarray:
        array = np.empty(shape, dtype)
        ok(self.sim.rt.memcpy(array.ctypes.data, array.nbytes, address, array.nbytes, D2H))
        return array

    def buffer(self, dataset: int, at: int) -> tuple[int, int]:
        handle = self.sim.mdl.get_dataset_buffer(dataset, at)
        return self.sim.get_data_buffer_addr(handle), self.sim.get_data_buffer_size_v2(handle)

    def fill(self, dataset: int, *arrays: np.ndarray) -> None:
        for at, array in enumerate(arrays):
            self.upload(self.buffer(dataset, at)[0], array)

    def results(self, model: int, outputs: int) -> list[np.ndarray]:
        """Return the outputs in the shapes of the gear that is set."""
        mdl, desc = self.sim.mdl, self.desc(model)
        found = []
        for at in range(mdl.get_num_outputs(desc)):
            dtype = DATA_TYPES[mdl.get_output_data_type(desc, at)][1]
            dims = ok(mdl.get_cur_output_dims(desc, at))["dims"]
            found.append(self.download(self.buffer(outputs, at)[0], dtype, dims))
        return found

    def run(self, model: int, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Run a static model once, on the stream."""
        inputs, outputs = self.datasets(model)
        self.fill(inputs, *arrays.values())
        ok(self.sim.mdl.execute_async(model, inputs, outputs, self.stream))
        ok(self.sim.rt.synchronize_stream(self.stream))
        return self.results(model, outputs)
