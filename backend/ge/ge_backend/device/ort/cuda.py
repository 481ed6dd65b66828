"""ONNX Runtime on a CUDA GPU, and never on the CPU instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ge_backend.device.base import GraphSource
from ge_backend.device.ort.graph import OnnxGraph
from ge_backend.device.pytorch.streams import Streams
from ge_backend.device.threads import Cores
from ge_backend.errors import DeviceFault, GraphFailed
from ge_backend.tensors import Array, Shape

__all__ = ["OnnxCudaGraph"]

PROVIDER = "CUDAExecutionProvider"
# FP32 is computed in FP32, not in TF32: `origin` promises what the file says. The algorithms of
# convolutions are chosen by rule: by default each new shape tries them all out, which takes
# seconds. The arena grows by what is needed, not to the next power of two, because other engines
# use the GPU too. Source: ONNX Runtime documentation, "CUDA Execution Provider".
OPTIONS = {
    "use_tf32": "0",
    "cudnn_conv_algo_search": "HEURISTIC",
    "arena_extend_strategy": "kSameAsRequested",
}


class OnnxCudaGraph:
    """One ONNX model in one session; ONNX Runtime has streams and scratch memory of its own.

    Tensors are bound in host memory, and ONNX Runtime moves them; any shape runs.

    Args:
        streams: of the device. Only its vendor is used, which knows the GPU and its errors.

    Raises:
        DeviceUnavailable: the CUDA provider is not there or does not load.
    """

    static_shapes = False
    fixed_shapes: tuple[Mapping[str, Shape], ...] = ()

    def __init__(self, source: GraphSource, streams: Streams) -> None:
        self._vendor = streams.vendor
        index = self._vendor.device.partition(":")[2]
        options = OPTIONS | ({"device_id": index} if index else {})
        self._graph = OnnxGraph(source, Cores(1), provider=(PROVIDER, options))
        self.signature = self._graph.signature

    def compile(self, shapes: Sequence[Mapping[str, Shape]]) -> None:
        """Do nothing: any shape runs."""

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Run once, so that memory for these shapes is there and algorithms are chosen."""
        self.run(inputs, {}, exclusive=False)

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return 0: the arena of ONNX Runtime is not ours to plan."""
        del shapes
        return 0

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        try:
            return self._graph.run(inputs, outputs, exclusive=exclusive)
        except GraphFailed as error:
            if error.__cause__ is not None and self._vendor.is_fault(error.__cause__):
                raise DeviceFault(f"{self._vendor.device} broke: {error}") from error
            raise

    def close(self) -> None:
        """Free the session and its memory."""
        self._graph.close()
