"""An encoder's layers as one OpenVINO graph: tokens of all rows end to end in, hidden states out.

transformers' own modules are traced once, and OpenVINO computes the trace. It has one free
dimension, the number of tokens, so one compiled model serves batches of all shapes; a mask made in
the graph keeps the rows apart.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import openvino
import torch
import transformers
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

from ge_backend.device.base import GraphSource
from ge_backend.device.ov.model import ENGINE_ERRORS, cause, compile_for_cpu, shared
from ge_backend.device.ov.precision import PRECISIONS, computes
from ge_backend.device.ov.signal_stack import signal_stack_kept
from ge_backend.device.pytorch.encoder import Layers, PackedEncoder
from ge_backend.device.pytorch.encoder_graph import EncoderGraph
from ge_backend.device.pytorch.packed_rows import PackedRows, rounded_tokens
from ge_backend.device.threads import Cores
from ge_backend.errors import GraphFailed, Unsupported
from ge_backend.tensors import Array

__all__ = ["OpenVinoEncoder", "OpenVinoLayers"]

DENSE = "ge_dense"
# The score of a token of another row: small enough to be nothing, and a number in BF16, too.
APART = -1e9
NOBODY = -1  # the row of what is behind the last token
# What is computed at once: masks and scores take the square of it, and more gains nothing. A longer
# row is by itself.
MOST_TOKENS = 512
LONGEST_ROW = 2048


class OpenVinoEncoder(EncoderGraph):
    """An encoder's checkpoint as a graph that OpenVINO computes; see `EncoderGraph`.

    Raises:
        Unsupported: OpenVINO cannot convert it, or does not compute in its precision here.
    """

    def __init__(self, source: GraphSource, cores: Cores) -> None:
        super().__init__(source, cores, engine=OpenVinoLayers, freeing=signal_stack_kept)

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Do nothing: one model serves all shapes, and what it takes for a run is not told."""


class OpenVinoLayers:
    """The layers of one encoder, to be compiled for so many threads.

    Raises:
        Unsupported: OpenVINO has no such operation, or does not compute in the precision here.
    """

    def __init__(self, encoder: PackedEncoder) -> None:
        if not computes(encoder.dtype):
            raise Unsupported(f"OpenVINO does not compute in {encoder.dtype} on this processor")
        if encoder.max_length > LONGEST_ROW:
            raise Unsupported(
                f"it takes texts of {encoder.max_length} tokens, and OpenVINO's masks would be too "
                f"large with more than {LONGEST_ROW}"
            )
        self._encoder = encoder
        with _refusing(), signal_stack_kept():
            self._model = _converted(encoder)

    def layers(self, threads: int, at_once: int) -> Layers:
        """Compile; see `EncoderEngine`."""
        compile_once = partial(
            compile_for_cpu,
            self._model,
            precision=PRECISIONS[self._encoder.dtype],
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
        low, high = int(packed.ids.min()), int(packed.ids.max())
        if low < 0 or high >= self._encoder.vocabulary:
            raise GraphFailed(
                f"a token's index out of range: idx={low if low < 0 else high} must be within the "
                f"inclusive range [0,{self._encoder.vocabulary - 1}]"
            )
        hidden = [self._computed(tokens) for tokens in _pieces(self._encoder, packed)]
        return hidden[0] if len(hidden) == 1 else np.concatenate(hidden)

    def _computed(self, tokens: _Tokens) -> Array:
        """Return FP32 `[T, W]`, the hidden states of these tokens."""
        requests = self._requests
        request = requests.take()
        try:
            for index, array in enumerate(tokens.inputs):  # read where they are
                request.set_input_tensor(index, shared(array, openvino.Type.i64))
            request.infer()
            hidden = np.array(request.get_output_tensor(0).data[: tokens.count])
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """Some whole rows, as the graph takes them.

    Attributes:
        inputs: INT64 `[R]` each: tokens, positions, and whose they are.
        count: how many of the tokens are real; the rest is nobody's.
    """

    inputs: tuple[Array, Array, Array]
    count: int


def _pieces(encoder: PackedEncoder, packed: PackedRows) -> Iterator[_Tokens]:
    """Yield the rows in turn, as many at once as have no more tokens than are computed at once."""
    positions = encoder.positions(packed)
    for begin, end in _cuts([*packed.firsts[1:].tolist(), len(packed.rows)]):
        count = end - begin
        inputs = np.zeros((3, rounded_tokens(count)), np.int64)
        inputs[2] = NOBODY
        for place, given in zip(inputs, (packed.ids, positions, packed.rows), strict=True):
            place[:count] = given[begin:end]
        yield _Tokens(inputs=(inputs[0], inputs[1], inputs[2]), count=count)


def _cuts(ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where pieces begin and end, of rows that end there."""
    begin = end = 0
    for following in ends:
        if following - begin > MOST_TOKENS and end > begin:
            yield begin, end
            begin = end
        end = following
    yield begin, end


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
            tuple(map(torch.from_numpy, next(_pieces(encoder, encoder.example)).inputs)),
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
