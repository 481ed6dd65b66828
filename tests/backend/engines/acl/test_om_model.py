"""One loaded file: its memory is ours, its gears are told; whole runs are in test_npu.py."""

import contextlib

import numpy as np
import pytest

from acl_simulator import DimsGears, Encoder, MatMul, Static, StaticV2, Sums
from builders.npu import PAIRS, encoder, floats, tokens
from ge_backend.device.base import NO_POOL
from ge_backend.engines.acl.memory import Block
from ge_backend.engines.acl.om_model import LoadedModel, OmSource, Sizes, WorkMemory
from ge_backend.engines.acl.transfer import Transfer
from ge_backend.errors import GraphFailed, OutOfMemory
from ge_backend.model.files.om_files import OmFile


def source_of(npu, path):
    return OmSource(
        device=npu.device._device,
        path=path,
        workspace=NO_POOL,
        pool=None,
        weights=npu.device._weights,
        timeout_ms=1000,
    )


class Opened:
    """A loaded file with work memory and slots, without a graph."""

    def __init__(self, npu, path):
        self.device = npu.device._device
        sizes = Sizes(*self.device.models.sizes(str(path)))
        self.taken = contextlib.ExitStack()
        scratch = WorkMemory()
        if sizes.work:
            work = Block(self.device.runtime, sizes.work, "work")
            self.taken.callback(work.close)
            scratch = WorkMemory(work.address, work.nbytes)
        self.model = LoadedModel(OmFile((), path), sizes, scratch, source_of(npu, path))
        described = self.model.description
        self.transfer = Transfer(self.device.runtime, described.inputs, described.outputs, "m")
        self.model.bind(self.transfer)

    def run(self, gear, inputs, shapes):
        with self.device.stream(1000) as stream:
            self.model.choose(gear)
            self.transfer.upload(inputs, stream)
            self.model.submit(stream)
            self.transfer.download(shapes, stream)
            self.device.runtime.synchronise(stream, 1000)
            return self.transfer.results(shapes, {})

    def close(self):
        self.transfer.close()
        self.model.close()
        self.taken.close()


def test_every_gear_says_what_comes_of_it(npu):
    """Input and output shapes, in the order of the gears."""
    opened = Opened(npu, encoder(npu.folder))
    assert [(run.inputs["input_ids"], run.outputs["y"]) for run in opened.model.runs] == [
        ((1, 16), (1, 8)),
        ((4, 16), (4, 8)),
        ((4, 32), (4, 8)),
    ]
    opened.close()


@pytest.mark.parametrize("kind", [Static, StaticV2])
def test_one_shape_says_what_comes_of_it_by_itself(npu, kind):
    """No gear has to be tried, and RuntimeV2 does not answer what comes of one."""
    opened = Opened(npu, npu.write(Sums(), kind({"x": (2, 5)})))
    assert opened.model.runs == (({"x": (2, 5)}, {"y": (2,)}),)
    assert npu.sim.calls["mdl.get_cur_output_dims"] == 0
    x = floats(2, 5)
    result = opened.run(0, {"x": x}, {"y": (2,)})["y"]
    assert np.array_equal(result, Sums().expected(x=x)["y"])
    opened.close()


def test_a_gear_is_chosen_for_each_run(npu):
    """Not the largest one, and not the one before."""
    opened = Opened(npu, encoder(npu.folder))
    runs = opened.model.runs
    for gear, size in ((0, (1, 16)), (2, (4, 32)), (1, (4, 16))):
        inputs = tokens(*size)
        result = opened.run(gear, inputs, runs[gear].outputs)["y"]
        assert np.array_equal(result, Encoder().expected(**inputs)["y"])
    assert [shapes["input_ids"] for _, shapes in npu.sim.executions] == [(1, 16), (4, 32), (4, 16)]
    opened.close()


def test_memory_is_given_to_it_not_taken_by_it(npu):
    """Weights and work memory are blocks of ours, of the sizes that the file says."""
    path = npu.write(MatMul(rows=16, columns=16), Static({"x": (2, 16)}), work_bytes=4096)
    opened = Opened(npu, path)
    assert {4096, 16 * 16 * 4} <= {block.size for block in npu.sim.allocations()}
    opened.close()


@pytest.mark.parametrize("code", [100000, 145000, 245000])
def test_a_file_that_does_not_load_leaves_nothing(npu, code):
    """Its weights are given back; a lack of memory says how much is needed."""
    path = npu.write(MatMul(rows=16, columns=16), Static({"x": (2, 16)}))
    npu.sim.fail("mdl.load_from_file_with_mem", code)
    kind, words = (
        (OutOfMemory, r"1\.\d+ KiB needed") if code == 245000 else (GraphFailed, str(code))
    )
    before = npu.sim.allocations()
    device = npu.device._device
    sizes = Sizes(*device.models.sizes(str(path)))
    with pytest.raises(kind, match=words):
        LoadedModel(OmFile((), path), sizes, WorkMemory(), source_of(npu, path))
    assert npu.sim.allocations() == before


def test_a_tensor_has_room_for_the_gear_in_which_it_is_largest(npu):
    """The gear with the most elements in all need not be that of the most rows."""
    shapes = DimsGears(PAIRS, [(8, 16, 8, 16), (4, 64, 4, 64)])
    opened = Opened(npu, npu.write(Encoder(), shapes))
    sizes = [tensor.nbytes for tensor in opened.model.description.inputs]
    assert sizes == [4 * 64 * 8] * 2
    assert opened.model.description.outputs[0].nbytes == 8 * 8 * 4
    inputs = tokens(8, 16)
    result = opened.run(0, inputs, {"y": (8, 8)})["y"]
    assert np.array_equal(result, Encoder().expected(**inputs)["y"])
    opened.close()
