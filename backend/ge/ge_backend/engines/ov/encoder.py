"""An encoder's layers as one OpenVINO graph: tokens of all rows end to end in, hidden states out.

transformers' own modules are traced once, with their masks, and OpenVINO computes the trace. Its
free dimensions are the number of tokens, and of the blocks in which they attend, and how wide these
are: one compiled model serves batches of all shapes.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import openvino
import torch
from openvino import opset13
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

from ge_backend.device.base import GraphSource
from ge_backend.device.machine.background import Background
from ge_backend.device.machine.host_memory import give_back_freed
from ge_backend.device.machine.threads import Cores
from ge_backend.engines.ov.angles import ComputedAngles, cut_angles
from ge_backend.engines.ov.arithmetic import Arithmetic, arithmetic_of
from ge_backend.engines.ov.blocks import STEPS, arrange, in_blocks, width_for
from ge_backend.engines.ov.by_shape import by_shape, fixed
from ge_backend.engines.ov.model import ENGINE_ERRORS, cause, compile_for_cpu, infer
from ge_backend.engines.ov.nodes import replace, whole
from ge_backend.engines.ov.precision import PRECISIONS, computed_in
from ge_backend.engines.ov.requests import Requests
from ge_backend.engines.ov.signal_stack import signal_stack_kept
from ge_backend.engines.ov.workarounds import apply_workarounds
from ge_backend.engines.torch.encoder import Layers, PackedEncoder
from ge_backend.engines.torch.encoder_graph import EncoderGraph
from ge_backend.engines.torch.masked_layers import MaskedLayers, RowChunks, Tokens
from ge_backend.engines.torch.packed_rows import PackedRows, rounded_tokens
from ge_backend.engines.torch.pretrained import quiet
from ge_backend.errors import Unsupported
from ge_backend.tensors import Array

__all__ = ["OpenVinoEncoder", "OpenVinoLayers"]

log = logging.getLogger(__name__)

# What is computed at once; a longer row is by itself. On a processor with AMX 16 and 32 rows of
# log-normal lengths took 17 and 13 % less CPU time than with 256 in BF16, 5 % less in FP32, and
# with 1,024 hardly less again.
MAX_TOKENS = 512
# Where one run takes all cores, chunks of at most these many tokens, in one block, have bodies of
# their own. A model for any shape makes ready anew when the shape changes: 0.8 to 1 ms of a run of
# 2 to 4 (an encoder of 6 layers), whatever its precision. A body takes 10 MB and a quarter of a
# second to compile, which is done beside serving.
SIZES = (8, 16, 24, 32, 40, 48, 56, 64)
# Further ones where arithmetic is in BF16, with weights of eight bits or without: to fill chunks up
# costs less there than to make ready anew, in FP32 more.
LARGER_SIZES = (80, 96, 128, 160)
# Scores take the square of it.
LONGEST_ROW = 2048
# What weights are read as; those of eight bits are made of FP32.
DTYPES = {
    "origin": torch.float32,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.float32,
}
# How far rows of eight bits may be apart from texts alone in FP32, as a share of the largest
# number. That rows end to end do not look at each other is seen by what others hold, too.
COMPRESSED = 0.25
# The place of the input that positions are in; see `_inputs`.
TOKENS = 0


class OpenVinoEncoder(EncoderGraph):
    """An encoder's checkpoint as a graph that OpenVINO computes; see `EncoderGraph`.

    Raises:
        Unsupported: OpenVINO cannot convert it, or does not compute in its precision.
    """

    def __init__(self, source: GraphSource, cores: Cores) -> None:
        self._source = source
        super().__init__(
            source, cores, engine=self._layered, freeing=signal_stack_kept, dtypes=DTYPES
        )
        self.precision = self._layers.arithmetic.instead_of(source.precision)
        self._reduced = self._layers.reduce()
        self._layers.compile_bodies()

    def prepare(self, inputs: Mapping[str, Array]) -> None:
        """Do nothing: one model serves all shapes, and what it takes for a run is not told."""

    def settle(self) -> None:
        """Wait for bodies that are being compiled; see `Graph.settle`."""
        self._layers.settle()

    def close(self) -> None:
        """Free the weights."""
        super().close()
        with signal_stack_kept():
            self._layers.close()

    def _layered(self, encoder: PackedEncoder) -> OpenVinoLayers:
        arithmetic = arithmetic_of(self._source.precision, self._source.path)
        self._layers = OpenVinoLayers(encoder, arithmetic=arithmetic)
        return self._layers


class OpenVinoLayers:
    """The layers of one encoder, to be compiled for a number of threads.

    Args:
        encoder: its modules are freed where products get weights of eight bits.
        arithmetic: what they are to be computed in; None is what the weights are in.

    Attributes:
        arithmetic: what they are computed in.

    Raises:
        Unsupported: OpenVINO has no such operation, or does not compute in the precision.
    """

    def __init__(self, encoder: PackedEncoder, arithmetic: Arithmetic | None = None) -> None:
        if encoder.dtype not in PRECISIONS:
            raise Unsupported(f"OpenVINO does not compute in {encoder.dtype} on a CPU")
        how = arithmetic or Arithmetic(kind=PRECISIONS[computed_in(encoder.dtype)])
        if encoder.max_length > LONGEST_ROW:
            raise Unsupported(
                f"it takes texts of {encoder.max_length} tokens, and OpenVINO's masks would be too "
                f"large with more than {LONGEST_ROW}"
            )
        self._encoder = encoder
        with _refusing(), signal_stack_kept():
            self._model = _converted(encoder, how.kind)
            self.arithmetic = how.applied(self._model, type(encoder.base).__name__)
        if self.arithmetic.compressed:
            encoder.tolerance = COMPRESSED
            encoder.base = None  # the graph keeps those of its weights that are left
        self._reduced = False
        self._begun = False
        self._bodies: list[Background[Layers]] = []

    def layers(self, threads: int, at_once: int) -> Layers:
        """Compile; see `EncoderEngine`."""

        def compile_any(model: Any) -> Any:
            return compile_for_cpu(
                model,
                precision=self.arithmetic.kind,
                threads=threads * at_once,
                streams=at_once,
                **self.arithmetic.options,
            )

        kind = self.arithmetic.kind
        step, sizes = STEPS[kind], SIZES if kind == "f32" else (*SIZES, *LARGER_SIZES)

        def sized() -> Layers:
            try:
                compiled = _Compiled(
                    lambda: compile_any(_sized(self._model, step, sizes)),
                    self._shown,
                    step,
                    at_once,
                    sizes,
                )
            except ENGINE_ERRORS as error:
                raise Unsupported(cause(error)) from error
            give_back_freed()  # compiling goes by way of copies
            return _chunks(self._encoder, partial(_rounded, sizes)).layers(compiled.run)

        with _refusing():
            compiled = _Compiled(lambda: compile_any(self._model), self._shown, step, at_once)
        free = _chunks(self._encoder).layers(compiled.run)
        if at_once > 1:
            return free
        bodies = Background(sized, name="bodies", without="one body for chunks of all sizes")
        self._bodies.append(bodies)
        if self._begun:
            bodies.begin()
        return _BetterLater(free, bodies).run

    def reduce(self) -> bool:
        """Give of each row what `PackedEncoder.reduction` says from now on, if that is less."""
        self._reduced = bool(self._encoder.reduction)
        return self._reduced

    def compile_bodies(self) -> None:
        """Have bodies for small chunks, in layers that have none yet, and in those to come.

        In the background: the layers are of use meanwhile.
        """
        self._begun = True
        for bodies in self._bodies:
            bodies.begin()

    def settle(self) -> None:
        """Wait for bodies that are being compiled."""
        for bodies in self._bodies:
            bodies.wait()

    def close(self) -> None:
        """Free bodies, after waiting for those that are being compiled."""
        for bodies in self._bodies:
            bodies.close()

    def _shown(self, hidden: Array, tokens: Tokens) -> Array:
        """Return what is given of a chunk's hidden states, which are in a request's memory."""
        if self._reduced:
            return self._encoder.reduced(hidden, tokens.ends[:-1])
        return hidden.copy()


class _BetterLater:
    """Layers that are there at once, and free their memory when better ones are."""

    def __init__(self, layers: Layers, later: Background[Layers]) -> None:
        self._layers, self._later = layers, later

    def run(self, packed: PackedRows) -> Array:
        """Return what the layers make of these rows; a run is computed by one of the two."""
        better = self._later.value
        if better is not None and better is not self._layers:
            with signal_stack_kept():
                self._layers = better
        return self._layers(packed)


class _Compiled:
    """One compiled model, and its requests.

    Args:
        compile_once: makes the model; called again when a run has failed, since what OpenVINO then
            computes of other shapes was seen to fail as well.
        shown: returns what is given of a chunk's hidden states, in memory of its own.
        step: of the widths of blocks.
        at_once: how many of its runs are computed at once.
        sizes: the chunks that it has bodies for; see `_sized`. None: it takes any, and no choice.
    """

    def __init__(
        self,
        compile_once: Callable[[], Any],
        shown: Callable[[Array, Tokens], Array],
        step: int,
        at_once: int,
        sizes: Sequence[int] = (),
    ) -> None:
        self._compile, self._shown, self._step, self._sizes = compile_once, shown, step, sizes
        self._at_once = at_once
        self._bodies = {size: np.array(place, np.int32) for place, size in enumerate(sizes)}
        self._other = np.array(len(sizes), np.int32)
        self._requests = self._compiled()

    def run(self, tokens: Tokens) -> Array:
        """Return FP32 `[T, W]`, the hidden states of these tokens, or what is given of them."""
        requests, size = self._requests, tokens.inputs.shape[1]
        try:
            with requests[size if size in self._bodies else 0].taken() as request:
                request.give(self._given(tokens))
                infer(request.infer_request)
                hidden = request.infer_request.get_output_tensor(0).data[: tokens.count]
                return self._shown(hidden, tokens)
        except ENGINE_ERRORS as error:
            with signal_stack_kept():
                self._requests = self._compiled()
            raise RuntimeError(cause(error)) from error

    def _compiled(self) -> Mapping[int, Requests[_Request]]:
        """Return the requests of each body, 0 for that of any size."""
        compiled = self._compile()
        return {size: Requests(compiled, self._at_once, _Request) for size in (0, *self._sizes)}

    def _given(self, tokens: Tokens) -> tuple[Array, ...]:
        """Return what the model takes: which body, where it has several, and `_inputs`."""
        size = tokens.inputs.shape[1]
        if not self._sizes:
            return _inputs(tokens, self._step)
        body = self._bodies.get(size)
        if body is None:
            return self._other, *_inputs(tokens, self._step)
        return body, *_inputs(tokens, self._step, width_for(size, self._step))


class _Request:
    """A request of OpenVINO's, and the memory that it reads its inputs from.

    To set an input takes 20 us, so what has the shape of the last run's is written over that.
    """

    def __init__(self, infer_request: Any) -> None:
        self.infer_request = infer_request
        self._inputs: dict[int, Array] = {}

    def give(self, arrays: Sequence[Array]) -> None:
        """Have the next run take a copy of these."""
        for index, array in enumerate(arrays):
            own = self._inputs.get(index)
            if own is not None and own.shape == array.shape:
                np.copyto(own, array)
                continue
            own = self._inputs[index] = array.copy()
            self.infer_request.set_input_tensor(index, openvino.Tensor(own, shared_memory=True))


class _Unpacked(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The layers as a graph of two inputs: to set another one takes 50 us, behind a run."""

    def __init__(self, layers: MaskedLayers) -> None:
        super().__init__()
        self._layers = layers

    def forward(self, tokens: torch.Tensor, block_tokens: torch.Tensor) -> torch.Tensor:
        """Return FP32 `[R, W]`; see `_inputs`."""
        hidden: torch.Tensor = self._layers(
            tokens[0], tokens[1], tokens[2], tokens[3], block_tokens
        )
        return hidden


def _inputs(tokens: Tokens, step: int, width: int = 0) -> tuple[Array, Array]:
    """Return INT64 `[4, R]`: tokens, positions, types and slots; and `Blocks.block_tokens`.

    `step` and `width` are as of `arrange`.
    """
    given = tokens.inputs.copy()
    blocks = arrange(tokens.ends, given.shape[1], step, width)
    given[3] = blocks.slots
    return given, blocks.block_tokens


def _chunks(encoder: PackedEncoder, rounded: Callable[[int], int] = rounded_tokens) -> RowChunks:
    return RowChunks(encoder=encoder, most=MAX_TOKENS, rounded=rounded)


def _rounded(sizes: Sequence[int], tokens: int) -> int:
    """Return the size of a chunk with this many tokens: one that has a body, if it is enough."""
    return next((size for size in sizes if size >= tokens), rounded_tokens(tokens))


def _sized(model: Any, step: int, sizes: Sequence[int]) -> Any:
    """Return a model with a body for chunks of each of these sizes, and one for all others behind.

    It takes which one, and what the model takes.
    """
    shapes = [((4, size), (2, 1, width_for(size, step))) for size in sizes]
    return by_shape([*(fixed(model, each) for each in shapes), model.clone()])


def _converted(encoder: PackedEncoder, kind: str) -> Any:
    """Return the layers as a model of OpenVINO's, with the weights where they are.

    It is to compute in a kind of real numbers, as OpenVINO calls it.

    By way of the frontend itself: `openvino.convert_model` reports each use to its makers.
    """
    example = _inputs(next(_chunks(encoder).of(encoder.example)), STEPS[kind])
    with torch.no_grad(), quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, on what it takes for constants
        traced = torch.jit.trace(
            _Unpacked(MaskedLayers(encoder, in_blocks(encoder.dtype))),
            tuple(map(torch.from_numpy, example)),
            strict=False,
            check_trace=False,
        )
        decoder = TorchScriptPythonDecoder(traced)  # which the frontend does not keep
        frontend = FrontEndManager().load_by_framework("pytorch")
        model = frontend.convert(frontend.load(decoder))
    for port, given in zip(model.inputs, example, strict=True):
        port.get_node().set_element_type(openvino.Type.i64)
        free = [given.shape[0], *[-1] * (given.ndim - 1)]
        port.get_node().set_partial_shape(openvino.PartialShape(free))
    model.validate_nodes_and_infer_types()
    apply_workarounds(model)
    if kind == "bf16":
        _look_up_angles(model, min(encoder.max_length, LONGEST_ROW))
    return model


def _look_up_angles(model: Any, most: int) -> None:
    """Have the angles of rotary positions, at most `most`, looked up in tables.

    Raises:
        Unsupported: they depend on more than a token's position.
    """
    angles = cut_angles(model)
    if angles is None:
        return
    tokens = np.zeros((4, most), np.int64)
    tokens[1] = np.arange(most)
    places = model.get_parameters()[-len(angles.model.outputs) :]
    positions = opset13.gather(model.input(TOKENS), whole(1), whole(0))
    if angles.inputs != (TOKENS,):
        raise Unsupported("its angles are computed of more than positions")
    compiled = compile_for_cpu(angles.model, precision="f32", threads=1)
    tables = ComputedAngles(compiled, 1, angles.inputs).of([tokens])
    for place, table in zip(places, tables, strict=True):
        along = table.shape.index(most)
        found = opset13.gather(opset13.constant(table), positions, whole(along))
        replace(place, [found.output(0)])
        model.remove_parameter(place)
    model.validate_nodes_and_infer_types()


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ENGINE_ERRORS as error:
        raise Unsupported(f"OpenVINO does not compute its layers: {cause(error)}") from error
