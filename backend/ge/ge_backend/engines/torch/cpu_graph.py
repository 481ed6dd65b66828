"""torch on the CPU: `torch.export` programs and TorchScript."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch

from ge_backend.device.arrays import shapes_of
from ge_backend.device.base import Graph, GraphSource
from ge_backend.device.failures import failure
from ge_backend.device.machine.threads import Cores, ThreadChoice, num_elements
from ge_backend.device.scratch import ScratchTable
from ge_backend.engines.torch.codec import TorchCodec
from ge_backend.engines.torch.device_errors import ENGINE_ERRORS
from ge_backend.engines.torch.program import load_program
from ge_backend.engines.torch.scratch import peak_bytes
from ge_backend.engines.torch.slow_half import warn_of_slow_half
from ge_backend.tensors import ANY_SHAPE, BUCKETED, Array, Shape

__all__ = ["TorchGraph"]


class TorchGraph(Graph):
    """One torch program; narrow runs use one thread, wide ones all cores, on the same weights.

    In `bf16` and `fp16` the weights are converted once, and the program runs under autocast, which
    converts where an operation would otherwise meet two types; inputs and outputs keep their
    declared types. Measured on an encoder (one thread, AVX512-BF16, 8 rows of 24 tokens): 49 ms as
    exported, 17 ms in bf16 with a largest difference of 3e-3; autocast alone takes 18 ms and keeps
    the weights at twice the size. fp16 takes 202 ms on a CPU without AVX512-FP16.

    oneDNN, which computes in `bf16`, makes ready for every new shape and never forgets one: lengths
    as they come took 1.56 times what their costs said, and a service grew from 437 to 1,830 MB in
    95 minutes. So there rows are padded to buckets.

    Scratch memory comes from the C library and goes back to it after every operator, so all
    programs of the process share it.
    """

    def __init__(self, source: GraphSource, cores: Cores) -> None:
        with contextlib.suppress(RuntimeError):  # set before, in this process
            torch.set_num_interop_threads(1)
        self._path = source.path
        self._program = load_program(source.path, declared=source.declared)
        self.signature = self._program.signature
        self._codec = TorchCodec(self._program, source.path, source.precision)
        warn_of_slow_half(source.path, self._codec.low)
        self.shape_policy = ANY_SHAPE if source.precision == "origin" else BUCKETED
        self._narrow_threads = source.threads or cores.share
        self._threads = ThreadChoice(
            cores, source.threads, self._narrow_threads, lambda: cores.count
        )
        self._scratch = ScratchTable()

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Measure this size's scratch; see `Graph.prepare`."""
        peak = peak_bytes(lambda: self._run(inputs, {}, self._narrow_threads))
        self._scratch.add(shapes_of(inputs), peak)

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the peak measured for these input shapes, or for larger ones."""
        return self._scratch.bound(shapes)

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        with self._threads.session(num_elements(inputs), exclusive=exclusive) as threads:
            return self._run(inputs, outputs, threads)

    def close(self) -> None:
        """Free the weights."""
        self._threads.close()
        del self._program

    def _run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], threads: int
    ) -> dict[str, Array]:
        codec = self._codec
        try:
            codec.check(inputs)
            with torch.inference_mode(), codec.autocast("cpu"):
                if torch.get_num_threads() != threads:
                    torch.set_num_threads(threads)  # of the calling thread
                tensors = {
                    name: codec.lowered(codec.tensor(name, array)) for name, array in inputs.items()
                }
                results = self._program.call(tensors)
                return {
                    name: codec.array(name, result, outputs.get(name))
                    for name, result in results.items()
                }
        except ENGINE_ERRORS as error:
            raise failure(error, self._path) from error
