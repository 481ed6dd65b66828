"""One set of input shapes, captured: the graph, its fixed buffers, and the places for runs.

A captured graph reads and writes the same addresses at every replay. So that the next run can be
uploaded while one computes, each run in flight has buffers of its own (`_Place`), on the host and
on the device, and the compute stream copies between them and the graph's, which costs far less
than the way over the bus:

    uploads     pinned ──▶ place.inputs                     downloads   place.outputs ──▶ pinned
                                │ event                                      ▲ event
    compute                     └──▶ inputs ─▶ replay ─▶ outputs ────────────┘
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Container, Iterator, Mapping

import numpy as np
import torch

from ge_backend.device.arrays import settled
from ge_backend.device.pytorch.buffers import BoundCopies, RowNumbers
from ge_backend.device.pytorch.packing import Packing
from ge_backend.device.pytorch.streams import Streams
from ge_backend.device.resident.buffers import NOTHING_BOUND, Bound
from ge_backend.tensors import Array

__all__ = ["PLACES", "CapturedShape"]

# One run computes while another one is uploaded or downloaded.
PLACES = 2

Tensors = Mapping[str, torch.Tensor]


class CapturedShape:
    """A program in one set of shapes. Everything it needs is allocated here; runs allocate nothing.

    Args:
        streams: the device's; the caller is the one who computes.
        inputs, outputs: the tensors of a run.
        call: computes the outputs from tensors on the device.
        example: inputs of valid values, to capture with.

    Raises:
        RuntimeError: no memory, or the device cannot capture this; nothing is held then.
    """

    def __init__(
        self,
        streams: Streams,
        inputs: Packing,
        outputs: Packing,
        call: Callable[[Tensors], Tensors],
        example: Mapping[str, Array],
    ) -> None:
        vendor = streams.vendor
        self._streams = streams
        places = [_Place(streams, inputs, outputs) for _ in range(PLACES)]
        self._inputs = vendor.empty(inputs.nbytes)
        self._outputs = vendor.empty(outputs.nbytes)
        self._packings = inputs, outputs
        self._given = given = inputs.tensors(self._inputs)
        self._wanted = wanted = outputs.tensors(self._outputs)

        def work() -> None:
            # Copied inside the graph: its own results lie in the pool, where the next graph to run
            # puts its scratch.
            for name, result in call(given).items():
                wanted[name].copy_(result)

        # Torch gives memory out again while this stream may still compute with it, and another one
        # is to write there. Source: PyTorch documentation, torch.Tensor.record_stream.
        streams.finish()
        places[0].upload(example)
        streams.compute.wait_event(places[0].uploaded)
        vendor.copy(self._inputs, places[0].inputs)
        streams.finish()
        work()  # a kernel whose first use were in the capture would be loaded there
        self._graph = streams.capture(work)
        self._free: queue.SimpleQueue[_Place] = queue.SimpleQueue()
        for place in places:
            self._free.put(place)

    def run(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        bound: Bound = NOTHING_BOUND,
    ) -> dict[str, Array]:
        """Run once; see `BoundGraph`. Waits while all places are taken."""
        ins, outs = self._packings
        wanted = self._wanted.keys() - bound.hidden
        with self._place() as place:
            place.upload(inputs)
            with self._streams.computing():
                self._streams.compute.wait_event(place.uploaded)
                vendor = self._streams.vendor
                copies = BoundCopies(vendor, bound, place.numbers)
                for span in ins.spans(inputs):
                    vendor.copy(self._inputs[span], place.inputs[span])
                copies.gather(self._given)
                self._graph.replay()
                copies.scatter(self._wanted)
                for span in outs.spans(wanted):
                    vendor.copy(place.outputs[span], self._outputs[span])
                place.computed.record(self._streams.compute)
            return place.download(wanted, outputs)

    @contextlib.contextmanager
    def _place(self) -> Iterator[_Place]:
        place = self._free.get()
        try:
            yield place
        except BaseException:
            with contextlib.suppress(RuntimeError), self._streams.computing():
                self._streams.vendor.synchronize()  # copies of the place may be queued
            raise
        finally:
            self._free.put(place)


class _Place:
    """Where one run in flight keeps its tensors.

    Attributes:
        inputs, outputs: on the device.
        uploaded, computed: the inputs have arrived; the outputs are there.
        numbers: of the rows of buffers that it takes or changes.
    """

    def __init__(self, streams: Streams, inputs: Packing, outputs: Packing) -> None:
        vendor = streams.vendor
        self.inputs = vendor.empty(inputs.nbytes)
        self.outputs = vendor.empty(outputs.nbytes)
        self.uploaded, self.computed = vendor.new_event(), vendor.new_event()
        self._downloaded = vendor.new_event()
        self.numbers = RowNumbers(vendor, inputs.num_rows + outputs.num_rows)
        self._streams = streams
        self._packings = inputs, outputs
        self._sent, self._received = vendor.pinned(inputs.nbytes), vendor.pinned(outputs.nbytes)
        self._arguments = inputs.arrays(self._sent)
        self._results = outputs.arrays(self._received)

    def upload(self, inputs: Mapping[str, Array]) -> None:
        """Queue these inputs' way to the device; they are read before this returns."""
        for name, array in inputs.items():
            np.copyto(self._arguments[name], array, casting="no")
        streams = self._streams
        with streams.copying(streams.uploads):
            for span in self._packings[0].spans(inputs):
                streams.vendor.copy(self.inputs[span], self._sent[span])
            self.uploaded.record(streams.uploads)

    def download(self, names: Container[str], outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Wait for these outputs, and return them: in the given arrays where they fit, else new."""
        streams = self._streams
        with streams.copying(streams.downloads):
            streams.downloads.wait_event(self.computed)
            for span in self._packings[1].spans(names):
                streams.vendor.copy(self._received[span], self.outputs[span])
            self._downloaded.record(streams.downloads)
        self._downloaded.synchronize()
        return {
            name: settled(array, outputs.get(name), lasting=False)
            for name, array in self._results.items()
            if name in names
        }
