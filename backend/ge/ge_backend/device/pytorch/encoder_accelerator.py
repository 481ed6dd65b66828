"""An encoder's checkpoint on an accelerator: its layers are captured once per number of tokens.

A batch becomes pieces of whole rows, and each piece is padded to the next of some thirty numbers of
tokens, so everything that runs while serving was captured at load.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from ge_backend.device.base import GraphSource
from ge_backend.device.pytorch.accelerator import AcceleratorGraph
from ge_backend.device.pytorch.device_errors import device_errors
from ge_backend.device.pytorch.encoder import Layers, PackedEncoder
from ge_backend.device.pytorch.encoder_graph import EncoderGraph
from ge_backend.device.pytorch.masked_layers import MaskedLayers, Pieces, Tokens, masks
from ge_backend.device.pytorch.packed_rows import rounded_tokens
from ge_backend.device.pytorch.pretrained import UNUSED
from ge_backend.device.pytorch.program import Program
from ge_backend.device.pytorch.streams import Streams
from ge_backend.device.pytorch.varlen import LEAST_LENGTH, find_varlen, row_ends, varlen
from ge_backend.device.threads import Cores
from ge_backend.tensors import DATA_TYPES, Array, Shape, Signature, TensorSpec

__all__ = ["AcceleratorEncoder", "DeviceLayers"]

# What is computed at once, unless a row is longer. Not measured on an accelerator.
MOST_TOKENS = 2048
LEAST_TOKENS = 16
# Numbers of tokens per power of two: padding is a tenth on average, and graphs are few.
STEPS = 4
# The axis of each; "rows" has what keeps rows apart, per token or per row.
INPUTS = {"input_ids": "tokens", "positions": "tokens", "rows": "rows"}
HIDDEN = "hidden"


class AcceleratorEncoder(EncoderGraph):
    """An encoder's checkpoint as a graph on an accelerator; see `EncoderGraph`.

    Its layers are an `AcceleratorGraph`, whose option `torch.mode` it takes; what comes before and
    behind them is computed on the host.
    """

    def __init__(self, source: GraphSource, streams: Streams) -> None:
        self._source, self._streams = source, streams
        super().__init__(source, Cores(1), engine=self._on_device)
        self._layers.capture()

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Do nothing: all numbers of tokens are captured at load."""

    def workspace_bytes(self, shapes: Mapping[str, Shape]) -> int:
        """Return the peak of the largest piece: graphs of all numbers of tokens share it."""
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

    Only what the check at load needs is captured here.

    Raises:
        GraphFailed: they cannot be computed for rows end to end.
        OutOfMemory, DeviceFault: of the device.
    """

    def __init__(self, encoder: PackedEncoder, source: GraphSource, streams: Streams) -> None:
        device = streams.vendor.device
        with streams.computing(), device_errors(source.path, streams.vendor):
            kernel = find_varlen(encoder.dtype, torch.device(device), encoder.head_size)
        self._varlen = kernel is not None
        least = LEAST_LENGTH if self._varlen else 0
        self._pieces = Pieces(encoder=encoder, most=MOST_TOKENS, rounded=_rounded, least=least)
        self._sizes = _sizes(encoder.max_length)
        apart = varlen(kernel, encoder.max_length) if kernel else masks(encoder.dtype)
        with device_errors(source.path, streams.vendor):
            program = _program(MaskedLayers(encoder, apart), encoder, device)
        # The weights have their precision already, and no file is read.
        own = replace(source, precision="origin")
        self._graph = AcceleratorGraph(own, streams, program=program)
        for tokens in self._pieces.of(encoder.example):
            self._prepare(tokens.inputs.shape[1])

    def layers(self, threads: int, at_once: int) -> Layers:
        """See `EncoderEngine`; the host's threads have no part in it."""
        del threads, at_once
        return self._pieces.layers(self._run)

    def capture(self) -> None:
        """Make ready for all numbers of tokens that runs have, as `AcceleratorGraph.prepare`."""
        for size in reversed(self._sizes):
            self._prepare(size)

    def scratch_bytes(self) -> int:
        """Return what the largest run needs beside weights and tokens."""
        largest = self._inputs(_blank(self._sizes[-1]))
        return self._graph.workspace_bytes({name: array.shape for name, array in largest.items()})

    def close(self) -> None:
        """Free weights and graphs."""
        self._graph.close()

    def _prepare(self, size: int) -> None:
        self._graph.prepare(self._inputs(_blank(size)))

    def _run(self, tokens: Tokens) -> Array:
        found = self._graph.run(self._inputs(tokens), {}, exclusive=False)
        return found[HIDDEN][: tokens.count]

    def _inputs(self, tokens: Tokens) -> dict[str, Array]:
        ids, positions, rows = tokens.inputs
        return dict(
            zip(INPUTS, (ids, positions, row_ends(tokens) if self._varlen else rows), strict=True)
        )


def _program(module: MaskedLayers, encoder: PackedEncoder, device: str) -> Program:
    """Return the layers on a device; what is behind them stays on the host."""
    if (pooler := getattr(encoder.base, UNUSED, None)) is not None:
        setattr(encoder.base, UNUSED, copy.deepcopy(pooler))
    module.to(device)

    def call(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {HIDDEN: module(*(tensors[name] for name in INPUTS))}

    whole, number = DATA_TYPES["INT64"], DATA_TYPES["FP32"]
    hidden = TensorSpec(name=HIDDEN, dtype=number, dims=(-1, encoder.width), axes=("tokens", ""))
    return Program(
        module=module,
        signature=Signature(
            inputs=tuple(
                TensorSpec(name=name, dtype=whole, dims=(-1,), axes=(axis,))
                for name, axis in INPUTS.items()
            ),
            outputs=(hidden,),
            axis_limits={},
        ),
        call=call,
        writes_in_place=False,
    )


def _rounded(tokens: int) -> int:
    return rounded_tokens(max(tokens, LEAST_TOKENS), STEPS)


def _sizes(longest: int) -> tuple[int, ...]:
    """Return all numbers of tokens that runs have, ascending."""
    longest = max(longest, MOST_TOKENS)
    return tuple(sorted({_rounded(count) for count in range(1, longest + 1)}))


def _blank(tokens: int) -> Tokens:
    """Return so many tokens of one row."""
    return Tokens(
        inputs=np.zeros((len(INPUTS), tokens), np.int64), count=tokens, ends=np.array([0, tokens])
    )
