"""An encoder's checkpoint as a graph: token ids and a mask in, embeddings or scores out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from ge_backend.device.arrays import into_place, shapes_of
from ge_backend.device.base import Graph, GraphSource
from ge_backend.device.failures import failure
from ge_backend.device.machine.threads import Cores, ThreadChoice
from ge_backend.device.scratch import ScratchTable
from ge_backend.engines.torch.device_errors import ENGINE_ERRORS
from ge_backend.engines.torch.encoder import EncoderEngine, Layers, PackedEncoder
from ge_backend.engines.torch.encoder_layers import TorchLayers
from ge_backend.engines.torch.scratch import peak_bytes
from ge_backend.errors import Unsupported
from ge_backend.model.files.encoder_folder import EncoderFolder, read_encoder_folder
from ge_backend.tensors import DATA_TYPES, PACKED, Array, Shape, Signature, TensorSpec

__all__ = ["EncoderGraph"]

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
DTYPES = {
    "origin": torch.float32,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class EncoderGraph(Graph):
    """A folder of transformers or sentence-transformers; see `PackedEncoder`.

    Inputs INT64 `input_ids`, `attention_mask`, of modules that tell types of tokens apart an
    optional `token_type_ids` [batch, sequence]; one FP32 output, called
    `sentence_embedding` or `scores` [batch, W], or `token_embeddings` or `token_scores`
    [batch, sequence, W].

    Args:
        source: the folder's `config.json`.
        cores: those of the device.
        engine: computes its layers.
        freeing: what the engine wants around the freeing of layers.
        dtypes: what the weights are read as, by the precisions that the engine computes in.

    Raises:
        ConfigError: the folder is not an encoder's.
        ModelError, Unsupported: as `PackedEncoder`.
    """

    shape_policy = PACKED

    def __init__(
        self,
        source: GraphSource,
        cores: Cores,
        *,
        engine: Callable[[PackedEncoder], EncoderEngine] = TorchLayers,
        freeing: Callable[[], AbstractContextManager[None]] = nullcontext,
        dtypes: Mapping[str, torch.dtype] = DTYPES,
    ) -> None:
        if source.precision not in dtypes:
            raise Unsupported(
                f"precision {source.precision!r} of {source.path}: this engine computes an encoder "
                f"in {', '.join(dtypes)}; take one of these, or for int8 OpenVINO, on a CPU"
            )
        folder = read_encoder_folder(Path(source.path).parent)
        self._path, self._output, self._freeing = source.path, folder.output, freeing
        self._reduced = False  # by the engine; see `PackedEncoder.run`
        per_run = source.threads or cores.share
        torch.set_num_threads(per_run)  # of the calling thread
        self._encoder = PackedEncoder(folder, dtypes[source.precision])
        with self._encoder.refusing():
            layered = engine(self._encoder)
            self._narrow = layered.layers(per_run, max(1, cores.count // per_run))
        self._encoder.difference(self._narrow)
        self._threads = ThreadChoice(
            cores,
            source.threads,
            self._narrow,
            lambda: layered.layers(cores.count, 1),
            freeing,
        )
        self._scratch = ScratchTable()
        self.signature = _signature(folder, self._encoder)

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Measure this size's scratch; see `Graph.prepare`."""
        peak = peak_bytes(lambda: self._run(inputs, self._narrow))
        self._scratch.add(shapes_of(inputs), peak)

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the peak measured for these input shapes, or for larger ones."""
        return self._scratch.bound(shapes)

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        with self._threads.session(int(inputs[MASK].sum()), exclusive=exclusive) as layers:
            found = self._run(inputs, layers)
        return {self._output: into_place(found, outputs.get(self._output))}

    def close(self) -> None:
        """Free the weights."""
        with self._freeing():
            self._threads.close()
            del self._narrow, self._encoder

    def _run(self, inputs: Mapping[str, Array], layers: Layers) -> Array:
        try:
            return self._encoder.run(
                layers, inputs[IDS], inputs[MASK], inputs.get(TYPES), reduced=self._reduced
            )
        except ENGINE_ERRORS as error:
            raise failure(error, self._path) from error


def _signature(folder: EncoderFolder, encoder: PackedEncoder) -> Signature:
    axes = ("batch", "sequence")
    whole, number = DATA_TYPES["INT64"], DATA_TYPES["FP32"]
    names = (IDS, MASK, TYPES) if encoder.token_types > 1 else (IDS, MASK)
    given = tuple(
        TensorSpec(name=name, dtype=whole, dims=(-1, -1), axes=axes, optional=name == TYPES)
        for name in names
    )
    free = (-1, -1) if folder.per_token else (-1,)
    output = TensorSpec(
        name=folder.output,
        dtype=number,
        dims=(*free, encoder.width),
        axes=(*axes[: len(free)], ""),
    )
    return Signature(inputs=given, outputs=(output,), axis_limits={"sequence": folder.max_length})
