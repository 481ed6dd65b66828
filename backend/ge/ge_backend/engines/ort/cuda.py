"""ONNX Runtime on a CUDA GPU, and never on the CPU instead."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch

from ge_backend.device.arrays import into_place
from ge_backend.device.base import Graph, GraphSource
from ge_backend.device.machine.threads import Cores
from ge_backend.device.resident.buffers import Bound, BufferMemory
from ge_backend.engines.ort.graph import OnDevice, OnnxGraph
from ge_backend.engines.torch.buffers import BoundCopies, TorchMemory, places
from ge_backend.engines.torch.device_errors import device_errors
from ge_backend.engines.torch.streams import Streams
from ge_backend.errors import GraphFailed
from ge_backend.tensors import Array

__all__ = ["OnnxCudaGraph"]

Tensors = Mapping[str, torch.Tensor]

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


class OnnxCudaGraph(Graph):
    """One ONNX model in one session; ONNX Runtime has streams and scratch memory of its own.

    The arena of that memory is not ours to plan, so no run's need is told.

    Tensors are bound in host memory, and ONNX Runtime moves them, or in torch's on the GPU; any
    shape runs. Nothing is captured while a session begins, which waits for the whole GPU, or ends,
    as cuBLAS does then. Source: onnxruntime, cuda_execution_provider.cc; cuBLAS, cublasDestroy.

    Args:
        streams: of the device, where torch copies to and from buffers. Its vendor knows the GPU and
            its errors.

    Raises:
        DeviceUnavailable: the CUDA provider is not there or does not load.
        OutOfMemory, DeviceFault: the GPU says so.
    """

    def __init__(self, source: GraphSource, streams: Streams) -> None:
        self._path, self._streams, self._vendor = source.path, streams, streams.vendor
        index = self._vendor.device.partition(":")[2]
        options = OPTIONS | ({"device_id": index} if index else {})
        with streams.uncaptured(), self._errors():
            self._graph = OnnxGraph(source, Cores(1), provider=(PROVIDER, options))
        self.signature = self._graph.signature

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Run once, so that memory for these shapes is there and algorithms are chosen."""
        self.run(inputs, {}, exclusive=False)

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        with self._errors():
            return self._graph.run(inputs, outputs, exclusive=exclusive)

    def device_memory(self) -> BufferMemory | None:
        """Return torch's, so that steps in torch and in ONNX Runtime share it; see `BoundGraph`.

        None for texts, which are never on the device, and for BF16, which is not copied from there.
        """
        kinds = {spec.dtype.name for spec in (*self.signature.inputs, *self.signature.outputs)}
        return None if kinds & {"BYTES", "BF16"} else TorchMemory(self._streams, self._errors)

    def run_bound(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], bound: Bound
    ) -> dict[str, Array]:
        """Run once; see `BoundGraph`.

        ONNX Runtime has a stream of its own, so each side waits for the other one: torch here, ONNX
        Runtime at the end of each run (by default; onnxruntime_run_options_config_keys.h).
        """
        self._check_types(bound)
        with self._errors():
            with self._streams.computing():
                copies = BoundCopies.alone(self._vendor, bound)
                given = places(self._vendor, bound.inputs)
                kept = places(self._vendor, bound.outputs)
                copies.gather(given)
                self._streams.finish()
            results = self._graph.run(
                inputs, outputs, exclusive=False, placed=self._placed(given, kept, bound.hidden)
            )
            with self._streams.computing():
                for name in kept.keys() & results.keys():  # not as it was to be; see `OnnxGraph`
                    kept[name] = torch.from_numpy(results[name]).to(self._vendor.device)
                copies.scatter(kept)
                self._streams.finish()
                return self._shown(results, kept, outputs, bound.hidden)

    def close(self) -> None:
        """Free the session and its memory."""
        with self._streams.uncaptured():
            self._graph.close()

    def _placed(self, given: Tensors, kept: Tensors, hidden: frozenset[str]) -> OnDevice:
        kind, _, index = self._vendor.device.partition(":")
        return OnDevice(
            device=kind,
            index=int(index or 0),
            inputs={n: (tensor.data_ptr(), tuple(tensor.shape)) for n, tensor in given.items()},
            outputs={n: (tensor.data_ptr(), tuple(tensor.shape)) for n, tensor in kept.items()},
            hidden=hidden,
        )

    def _shown(
        self,
        results: Mapping[str, Array],
        kept: Tensors,
        outputs: Mapping[str, Array],
        hidden: frozenset[str],
    ) -> dict[str, Array]:
        """Return the outputs that are not hidden, those that stay among them."""
        shown = {name: value for name, value in results.items() if name not in hidden}
        for name in kept.keys() - hidden - shown.keys():
            shown[name] = into_place(kept[name].cpu().numpy(), outputs.get(name))
        return shown

    def _check_types(self, bound: Bound) -> None:
        """See that the bytes in buffers are of the types that the graph reads and writes."""
        declared = {spec.name: spec for spec in (*self.signature.inputs, *self.signature.outputs)}
        for name, item in (*bound.inputs.items(), *bound.outputs.items()):
            if name in declared and declared[name].dtype != item.dtype:
                raise GraphFailed(
                    f"{name!r} is {declared[name].describe()}; what is kept is {item.dtype.name}"
                )

    def _errors(self) -> AbstractContextManager[None]:
        """Tell a fault of the GPU apart, and a lack of memory."""
        return device_errors(self._path, self._vendor)
