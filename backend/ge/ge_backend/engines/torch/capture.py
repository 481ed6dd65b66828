"""One set of input shapes, captured: the graph, its fixed buffers, and the places for runs.

A captured graph reads and writes the same addresses at every replay, and each run in flight has
buffers of its own (`_Place`). Few bytes cross the bus in the compute stream itself, which costs the
least calls, and each call into torch may wait for Python's lock:

    compute     pinned ──▶ inputs ─▶ replay ─▶ outputs ──▶ pinned

Many are uploaded while another run computes, and downloaded while the next one does; the compute
stream copies between the place's memory on the device and the graph's:

    uploads     pinned ──▶ place.inputs                     downloads   place.outputs ──▶ pinned
                                │ event                                      ▲ event
    compute                     └──▶ inputs ─▶ replay ─▶ outputs ────────────┘
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Container, Iterator, Mapping, Sequence

import numpy as np
import torch

from ge_backend.device.arrays import into_place
from ge_backend.device.resident.buffers import NOTHING_BOUND, Bound
from ge_backend.engines.torch.buffers import BoundCopies, RowNumbers
from ge_backend.engines.torch.packing import Packing
from ge_backend.engines.torch.streams import Streams
from ge_backend.tensors import Array

__all__ = ["PLACES", "CapturedShape"]

# One run computes while another one is uploaded or downloaded.
PLACES = 2
# This many bytes cross the bus in about the time that the calls take which let others compute then:
# some 10 us at 25 GB/s.
FEW_BYTES = 1 << 18

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
        sent = list(inputs.spans(example))
        self._take(places[0], places[0].upload(example, sent), sent)
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
        rows: int | None = None,
    ) -> dict[str, Array]:
        """Run once; see `BoundGraph`. Waits while all places are taken.

        With `rows` only the first `rows` of each output come back.
        """
        ins, outs = self._packings
        wanted = self._wanted.keys() - bound.hidden
        sent = list(ins.spans(inputs))
        received = list(outs.spans(wanted) if rows is None else outs.first_rows(wanted, rows))
        vendor = self._streams.vendor
        with self._place() as place:
            given = place.upload(inputs, sent)
            with self._streams.computing():
                self._take(place, given, sent)
                copies = BoundCopies(vendor, bound, place.numbers)
                copies.gather(self._given)
                self._graph.replay()
                copies.scatter(self._wanted)
                taken = place.taken(received)
                for span in received:
                    vendor.copy(taken[span], self._outputs[span])
                place.computed.record(self._streams.compute)
            place.download(received)
            return place.results(wanted, outputs, rows)

    def _take(self, place: _Place, given: torch.Tensor, spans: Sequence[slice]) -> None:
        """Queue the inputs' copy from where `upload` says that they are."""
        if given is place.inputs:
            self._streams.compute.wait_event(place.uploaded)
        for span in spans:
            self._streams.vendor.copy(self._inputs[span], given[span])

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

    def upload(self, inputs: Mapping[str, Array], spans: Sequence[slice]) -> torch.Tensor:
        """Return where these inputs are, in which parts: on the host, or on their way from there.

        `uploaded` is recorded in the latter case. They are read before this returns.
        """
        for name, array in inputs.items():
            np.copyto(self._arguments[name], array, casting="no")
        if _few(spans):
            return self._sent
        streams = self._streams
        with streams.copying(streams.uploads):
            for span in spans:
                streams.vendor.copy(self.inputs[span], self._sent[span])
            self.uploaded.record(streams.uploads)
        return self.inputs

    def taken(self, spans: Sequence[slice]) -> torch.Tensor:
        """Return where the compute stream leaves these parts of the outputs."""
        return self._received if _few(spans) else self.outputs

    def download(self, spans: Sequence[slice]) -> None:
        """Wait until these parts are on the host."""
        if _few(spans):
            self.computed.synchronize()
            return
        streams = self._streams
        with streams.copying(streams.downloads):
            streams.downloads.wait_event(self.computed)
            for span in spans:
                streams.vendor.copy(self._received[span], self.outputs[span])
            self._downloaded.record(streams.downloads)
        self._downloaded.synchronize()

    def results(
        self, names: Container[str], outputs: Mapping[str, Array], rows: int | None
    ) -> dict[str, Array]:
        """Return these outputs, or their first rows: in the given arrays where they fit, else new.

        They have been downloaded.
        """
        return {
            name: into_place(
                array if rows is None else array[:rows], outputs.get(name), lasting=False
            )
            for name, array in self._results.items()
            if name in names
        }


def _few(spans: Sequence[slice]) -> bool:
    moved: int = sum(span.stop - span.start for span in spans)
    return moved <= FEW_BYTES
