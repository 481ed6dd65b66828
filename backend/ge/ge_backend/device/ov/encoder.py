"""An encoder's layers as one OpenVINO graph: tokens of all rows end to end in, hidden states out.

transformers' own modules are traced once, and OpenVINO computes the trace. It has one free
dimension, the number of tokens, so one compiled model serves batches of all shapes; a mask made in
the graph keeps the rows apart.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import openvino
import torch
import transformers
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

from ge_backend.device.base import GraphSource
from ge_backend.device.ov.model import ENGINE_ERRORS, cause, compile_for_cpu, computes_bf16, shared
from ge_backend.device.ov.signal_stack import signal_stack_kept
from ge_backend.device.pytorch.encoder import Layers, PackedEncoder
from ge_backend.device.pytorch.encoder_graph import EncoderGraph
from ge_backend.device.pytorch.packed_rows import PackedRows
from ge_backend.device.threads import Cores
from ge_backend.errors import GraphFailed, Unsupported
from ge_backend.tensors import Array

__all__ = ["OpenVinoEncoder", "OpenVinoLayers"]

DENSE = "ge_dense"
HINTS = {torch.float32: "f32", torch.bfloat16: "bf16"}
# The score of a token of another row: small enough to be nothing, and a number in BF16, too.
APART = -1e9
NOBODY = -1  # the row of what is behind the last token


class OpenVinoEncoder(EncoderGraph):
    """An encoder's checkpoint as a graph that OpenVINO computes; see `EncoderGraph`.

    Raises:
        Unsupported: OpenVINO cannot convert it, or does not compute in its precision here.
    """

    def __init__(self, source: GraphSource, cores: Cores) -> None:
        super().__init__(source, cores, engine=OpenVinoLayers, freeing=signal_stack_kept)


class OpenVinoLayers:
    """The layers of one encoder, to be compiled for so many threads.

    Raises:
        Unsupported: OpenVINO has no such operation, or does not compute in the precision here.
    """

    def __init__(self, encoder: PackedEncoder) -> None:
        if encoder.dtype != torch.float32 and not (encoder.dtype in HINTS and computes_bf16()):
            raise Unsupported(f"OpenVINO does not compute in {encoder.dtype} on this processor")
        self._encoder = encoder
        with _refusing(), signal_stack_kept():
            self._model = _converted(encoder)

    def layers(self, threads: int, at_once: int) -> Layers:
        """Compile; see `EncoderEngine`."""
        compile_once = partial(
            compile_for_cpu,
            self._model,
            precision=HINTS[self._encoder.dtype],
            threads=threads * at_once,
            streams=at_once,
        )
        with _refusing():
            return _Compiled(self._encoder, compile_once).run


class _Compiled:
    """One compiled model, and its requests, which later runs use again: a new one costs 8 %.

    Args:
        encoder: whose layers they are.
        compile_once: makes the model; called again when a run has failed, since what OpenVINO then
            computes of other shapes was seen to fail as well.
    """

    def __init__(self, encoder: PackedEncoder, compile_once: Callable[[], Any]) -> None:
        self._encoder, self._compile = encoder, compile_once
        self._requests = _Requests(compile_once())

    def run(self, packed: PackedRows) -> Array:
        """Return FP32 `[R, W]`; see `Layers`."""
        low, high = packed.ids.min(), packed.ids.max()
        if low < 0 or high >= self._encoder.vocabulary:
            raise GraphFailed(
                f"token ids go from {low} to {high}: index out of range, the model's vocabulary "
                f"has {self._encoder.vocabulary}"
            )
        requests = self._requests
        request = requests.take()
        given = _inputs(self._encoder, packed)  # which OpenVINO reads where they are
        try:
            for index, array in enumerate(given):
                request.set_input_tensor(index, shared(array, openvino.Type.i64))
            request.infer()
            hidden = np.array(request.get_output_tensor(0).data)
        except ENGINE_ERRORS as error:
            with signal_stack_kept():
                self._requests = _Requests(self._compile())
            raise RuntimeError(cause(error)) from error
        requests.idle.append(request)
        return hidden


class _Requests:
    """The requests of one compiled model that nobody uses now."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self.idle: deque[Any] = deque()

    def take(self) -> Any:
        """Return one that is idle, else a new one."""
        try:
            return self.idle.pop()
        except IndexError:
            return self._compiled.create_infer_request()


def _inputs(encoder: PackedEncoder, packed: PackedRows) -> tuple[Array, ...]:
    """Return INT64 `[R]` each: tokens, positions, and whose they are."""
    rows = np.full(len(packed.ids), NOBODY, np.int64)
    rows[: len(packed.rows)] = packed.rows
    return packed.ids, encoder.positions(packed), rows


class _Masks:
    """What is added to scores, FP `[1, 1, R, R]`, by how far a token sees; each is made once."""

    def __init__(self, rows: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> None:
        self._same = rows.unsqueeze(0) == rows.unsqueeze(1)
        self._distances = (positions.unsqueeze(0) - positions.unsqueeze(1)).abs()
        self._dtype = dtype
        self._made: dict[int | None, torch.Tensor] = {}

    def within(self, window: int | None) -> torch.Tensor:
        """Return the mask for tokens that are less than so far away; None: all of the row."""
        if window not in self._made:
            seen = self._same if window is None else self._same & (self._distances < window)
            self._made[window] = torch.where(seen, 0.0, APART).to(self._dtype)[None, None]
        return self._made[window]


class _EndToEnd(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The layers with their masks, as they are traced."""

    def __init__(self, encoder: PackedEncoder) -> None:
        super().__init__()
        self._base = encoder.base
        self._dtype = encoder.dtype

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        masks = _Masks(rows, positions, self._dtype)
        for module in self._base.modules():
            module.ge_masks = masks
        found = self._base(input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0))
        for module in self._base.modules():
            del module.ge_masks
        hidden: torch.Tensor = found.last_hidden_state[0]
        return hidden.float()


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend among the tokens of a row; arguments and result as in `packed_attention`."""
    masks: Any = module.ge_masks
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (item.repeat_interleave(groups, 1) for item in (key, value))
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=masks.within(sliding_window), scale=scaling
    )
    return found.transpose(1, 2), None


def _converted(encoder: PackedEncoder) -> Any:
    """Return the layers as a model of OpenVINO's, with the weights where they are.

    By way of the frontend itself: `openvino.convert_model` reports each use to its makers.
    """
    transformers.AttentionInterface.register(DENSE, _attention)
    encoder.whole.set_attn_implementation(DENSE)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, on what it takes for constants
        traced = torch.jit.trace(
            _EndToEnd(encoder),
            tuple(map(torch.from_numpy, _inputs(encoder, encoder.example))),
            strict=False,
            check_trace=False,
        )
        decoder = TorchScriptPythonDecoder(traced)  # which the frontend does not keep
        frontend = FrontEndManager().load_by_framework("pytorch")
        model = frontend.convert(frontend.load(decoder))
    for port in model.inputs:
        port.get_node().set_element_type(openvino.Type.i64)
        port.get_node().set_partial_shape(openvino.PartialShape([-1]))
    model.validate_nodes_and_infer_types()
    return model


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ENGINE_ERRORS as error:
        raise Unsupported(f"OpenVINO does not compute its layers: {cause(error)}") from error
