"""An encoder's checkpoint on an accelerator: its layers are captured once per number of tokens.

A batch becomes chunks of whole rows, and each chunk is padded to the next of some thirty numbers of
tokens, so everything that runs while serving was captured at load. What of the hidden states counts
for a row is made of them there: they are as many times as large as a row has tokens, and on an H100
took longer over the bus, and on the host, than they took to be computed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from ge_backend.device.base import GraphSource
from ge_backend.device.machine.threads import Cores
from ge_backend.engines.torch.accelerator import MODE, AcceleratorGraph
from ge_backend.engines.torch.device_errors import device_errors
from ge_backend.engines.torch.encoder import TOLERANCE, Layers, PackedEncoder
from ge_backend.engines.torch.encoder_graph import EncoderGraph
from ge_backend.engines.torch.masked_layers import MaskedLayers, RowChunks, Tokens
from ge_backend.engines.torch.packed_rows import rounded_tokens
from ge_backend.engines.torch.pretrained import UNUSED
from ge_backend.engines.torch.program import Program
from ge_backend.engines.torch.reduction import REDUCTIONS
from ge_backend.engines.torch.streams import Streams
from ge_backend.engines.torch.varlen import find_varlen, varlen
from ge_backend.errors import Unsupported
from ge_backend.tensors import DATA_TYPES, Array, Shape, Signature, TensorSpec

__all__ = ["AcceleratorEncoder", "DeviceLayers"]

# What is computed at once, unless a row is longer: with masks, whose work grows with its square,
# and without. On an H100, BERT of 12 layers in BF16, 3,799 tokens: 3.9 ms in two chunks and 4.4 in
# one with masks, 3.6 and 3.3 without.
MAX_TOKENS = 2048
MAX_TOKENS_VARLEN = 4096
MIN_TOKENS = 16
# As how many tokens a row counts, at least: so a run has room for an eighth as many rows as tokens.
MIN_ROW = 8
# Numbers of tokens per power of two: padding is a tenth on average, and graphs are few.
STEPS = 4
# Each input's axis: the last one says where rows begin and end, the one before whose a token is.
INPUTS = {
    "input_ids": "tokens",
    "positions": "tokens",
    "types": "tokens",
    "rows": "tokens",
    "ends": "ends",
}


class AcceleratorEncoder(EncoderGraph):
    """An encoder's checkpoint as a graph on an accelerator; see `EncoderGraph`.

    Its layers are an `AcceleratorGraph`, whose option `torch.mode` it takes; what comes before them
    and a classifier's head are computed on the host.
    """

    def __init__(self, source: GraphSource, streams: Streams) -> None:
        self._source, self._streams = source, streams
        super().__init__(source, Cores(1), engine=self._on_device)
        self._layers.capture()
        self._reduced = self._layers.reduced

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Do nothing: all numbers of tokens are captured at load."""

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the peak of the largest chunk: graphs of all numbers of tokens share it."""
        del shapes
        return self._layers.scratch_bytes()

    def close(self) -> None:
        """Free weights and graphs."""
        super().close()
        self._layers.close()
        del self._layers

    def _on_device(self, encoder: PackedEncoder) -> DeviceLayers:
        self._layers = DeviceLayers(encoder, self._source, self._streams)
        return self._layers


class DeviceLayers:
    """The layers of one encoder on a device; see `EncoderEngine`.

    Until `capture` they give hidden states, as the check at load needs them, and run eagerly.

    Attributes:
        reduced: whether they give of each row what `PackedEncoder.reduction` says.

    Raises:
        GraphFailed: they cannot be computed for rows end to end.
        OutOfMemory, DeviceFault: of the device.
    """

    def __init__(self, encoder: PackedEncoder, source: GraphSource, streams: Streams) -> None:
        # The weights have their precision already, and no file is read.
        self._source, self._streams = replace(source, precision="origin"), streams
        self._encoder = encoder
        device = streams.vendor.device
        with streams.computing(), device_errors(source.path, streams.vendor):
            kernel = find_varlen(encoder.dtype, _head_size(encoder), streams.vendor)
        self._row_input = "ends" if kernel else "rows"
        most = MAX_TOKENS_VARLEN if kernel else MAX_TOKENS
        self._chunks = RowChunks(encoder=encoder, most=most, rounded=_rounded, least=MIN_ROW)
        self._sizes = _sizes(max(encoder.max_length, most))
        attention = varlen(kernel, encoder.max_length) if kernel else None
        with device_errors(source.path, streams.vendor):
            self._module = _moved(MaskedLayers(encoder, attention), encoder, device)
        self.reduced = False
        options = ((name, value) for name, value in source.options if name != MODE)
        eager = replace(self._source, options=(*options, (MODE, "eager")))
        program = self._program(lambda hidden, _: hidden)
        self._graph = AcceleratorGraph(eager, streams, program=program)

    def layers(self, threads: int, at_once: int) -> Layers:
        """See `EncoderEngine`; the host's threads have no part in it."""
        del threads, at_once
        return self._chunks.layers(self._run)

    def capture(self) -> None:
        """Make ready for all numbers of tokens that runs have, as `AcceleratorGraph.prepare`.

        Raises:
            Unsupported: the encoder's example comes out otherwise then.
        """
        example, compute = self._encoder.example, self._chunks.layers(self._run)
        hidden = compute(example)[: len(example.rows)]
        reduce = REDUCTIONS.get(self._encoder.reduction)
        program = self._program(
            lambda hidden, given: reduce(hidden, given["rows"], given["ends"]) if reduce else hidden
        )
        graph = AcceleratorGraph(self._source, self._streams, program=program)
        self._graph.close()
        self._graph, self.reduced = graph, reduce is not None
        for size in reversed(self._sizes):
            graph.prepare(_inputs(_blank(size)))
        expected = self._encoder.reduced(hidden, example.firsts) if self.reduced else hidden
        apart = float(np.abs(compute(example)[: len(expected)] - expected).max())
        largest = float(np.abs(expected).max())
        if not apart <= TOLERANCE[self._encoder.dtype] * largest:
            raise Unsupported(
                f"made ready for {self._streams.vendor.device}, the layers differ by {apart:.2g} "
                f"from what they gave before; the largest number is {largest:.2g}"
            )

    def scratch_bytes(self) -> int:
        """Return what the largest run needs beside weights and tokens."""
        largest = _inputs(_blank(self._sizes[-1]))
        return self._graph.workspace_bytes({name: array.shape for name, array in largest.items()})

    def close(self) -> None:
        """Free weights and graphs."""
        self._graph.close()
        del self._module, self._encoder

    def _run(self, tokens: Tokens) -> Array:
        count = len(tokens.ends) - 1 if self.reduced else tokens.count
        (found,) = self._graph.first_rows(_inputs(tokens), count).values()
        return found

    def _program(
        self, shown: Callable[[torch.Tensor, Mapping[str, torch.Tensor]], torch.Tensor]
    ) -> Program:
        """Return the layers with what is shown of their hidden states, FP32 `[R, W]`."""
        module, row_input = self._module, self._row_input

        def call(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            hidden = module(
                *(tensors[name] for name in ("input_ids", "positions", "types", row_input))
            )
            return {"shown": shown(hidden, tensors)}

        whole, number = DATA_TYPES["INT64"], DATA_TYPES["FP32"]
        return Program(
            module=module,
            signature=Signature(
                inputs=tuple(
                    TensorSpec(name=name, dtype=whole, dims=(-1,), axes=(axis,))
                    for name, axis in INPUTS.items()
                ),
                outputs=(TensorSpec(name="shown", dtype=number, dims=(-1, -1), axes=("", "")),),
                axis_limits={},
            ),
            call=call,
            writes_in_place=False,
        )


def _head_size(encoder: PackedEncoder) -> int:
    """Return how many numbers a head of its attention has; 0 where nothing says so."""
    config = encoder.base.config
    if size := getattr(config, "head_dim", None):
        return int(size)
    return int(getattr(config, "hidden_size", 0) // getattr(config, "num_attention_heads", 1))


def _moved(module: MaskedLayers, encoder: PackedEncoder, device: str) -> MaskedLayers:
    """Return the layers on a device; what is behind them stays on the host."""
    if (pooler := getattr(encoder.base, UNUSED, None)) is not None:
        setattr(encoder.base, UNUSED, copy.deepcopy(pooler))
    module.to(device)
    return module


def _rounded(tokens: int) -> int:
    return rounded_tokens(max(tokens, MIN_TOKENS), STEPS)


def _sizes(most: int) -> tuple[int, ...]:
    """Return all numbers of tokens that runs have, ascending."""
    return tuple(sorted({_rounded(count) for count in range(1, most + 1)}))


def _inputs(tokens: Tokens) -> dict[str, Array]:
    """Return a run's inputs.

    `ends` is INT64 `[R // MIN_ROW + 1]`, from 0 to R: what is behind the last token is a row
    of its own, and those that are not there are empty.
    """
    size = tokens.inputs.shape[1]
    ends = np.full(size // MIN_ROW + 1, size, np.int64)
    ends[: len(tokens.ends)] = tokens.ends
    return dict(zip(INPUTS, (*tokens.inputs, ends), strict=True))


def _blank(tokens: int) -> Tokens:
    """Return one row of `tokens` tokens."""
    return Tokens(inputs=np.zeros((4, tokens), np.int64), count=tokens, ends=np.array([0, tokens]))
