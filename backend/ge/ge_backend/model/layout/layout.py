"""How a graph's tensors relate to requests: which axes are padded, what is made, what is cut.

Derived once at load from the configuration and the graph's signature, and frozen. `stage` and
`split` read the same layout, so padding is never decided twice.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ge_backend.errors import ConfigError
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.sequence_batching import State
from ge_backend.model.layout.freed_dims import free_fixed_dims
from ge_backend.model.layout.sequence_tensors import placed_states, with_controls, without_states
from ge_backend.model.layout.validate import (
    agreed_signature,
    generated_by,
    generator_detail,
    is_common,
    tensor_named,
)
from ge_backend.tensors import (
    ANY_SHAPE,
    DataType,
    Shape,
    ShapePolicy,
    Signature,
    TensorSpec,
    float32_to_bf16,
)

__all__ = [
    "EQUAL_AXIS_SIZE",
    "InputLayout",
    "Layout",
    "OutputLayout",
    "RequestShape",
    "TensorLayout",
    "build_layout",
    "outside_layout",
]

log = logging.getLogger(__name__)

# What rows cost is measured with free axes that are not padded at this size: any is a guess.
EQUAL_AXIS_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """One input or output of the graph.

    Attributes:
        dims: sizes of one row, the batch dimension left out; -1 is free.
        axes: per dimension of `dims` the index of the free axis that it is, or -1. The padded axes
            of the layout come first, then its equal ones.
        names: per dimension its axis name.
        source: the input whose tensors it is made from or takes the shapes of, where it is written
            or scattered for a whole batch at once: itself for inputs that are concatenated flat;
            "" for one that is written or cut row by row.
        common: its whole shape where the graph has no dimension for rows: one value for all rows
            of a run, which each row of a request repeats.
    """

    name: str
    dtype: DataType
    dims: Shape
    axes: tuple[int, ...]
    names: tuple[str, ...]
    source: str = ""
    common: Shape | None = None

    def shape(self, batch: Shape, sizes: Shape) -> Shape:
        """Return the graph's shape for a run: `batch` is (rows,), or () where there are none."""
        return batch + self.row_shape(sizes) if self.common is None else self.common

    def row_shape(self, sizes: Shape) -> Shape:
        """Return one row's shape by the padded and the equal axes; -1 where the graph knows."""
        return tuple(
            [
                sizes[axis] if axis >= 0 else dim
                for dim, axis in zip(self.dims, self.axes, strict=True)
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout(TensorLayout):
    """One input of the graph.

    Attributes:
        fill: what padding is filled with, as stored (BF16: the bit pattern).
        made: `mask`, `lengths`, `positions`, `zeros` or `number` when the backend makes the input
            for clients that do not send it, a kind of `batch_input`, or "" when clients must send.
        number: what it then holds, as stored.
        real: what a mask holds where there is something.
        optional: the graph runs without it.
        counted: of `lengths` the index of the free axis whose sizes it holds, as in `axes`; where
            there is none, each row counts as 1.
    """

    fill: float
    made: str
    number: float = 0.0
    real: float = 1.0
    optional: bool = False
    counted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLayout(TensorLayout):
    """One output of the graph.

    Attributes:
        lengths: per dimension the output that tells each row's real size, "" where none does; ()
            where no dimension has one.
        fill: what stands behind a row's real size where other rows of its request are longer.
    """

    lengths: tuple[str, ...] = ()
    fill: float = 0.0

    @property
    def lengths_from(self) -> tuple[str, ...]:
        """`lengths`, one for each dimension also where none has any."""
        return self.lengths or ("",) * len(self.dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """What a request is by the types and shapes of its tensors; see `Request`.

    Attributes:
        common: the inputs that it has sent and that a run has only one value of.
    """

    rows: int
    sizes: Shape
    equal_sizes: Shape
    omitted: tuple[str, ...]
    common: tuple[InputLayout, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The whole graph.

    Attributes:
        batched: tensors begin with a batch dimension (`max_batch_size` > 0).
        axes: names of the padded axes. A request has one size for each.
        equal_axes: names of the free axes that are not padded: only rows of equal sizes run
            together. Each input that clients must send has its own, even under one name, unless
            names are known to be true: graphs exist that reuse a symbol for dimensions that differ.
        limits: the largest size that the graph itself allows, by axis name.
        least: the smallest, where that is above 1; shorter rows of a padded axis are padded to it.
        least_rows: the fewest rows that a run may have; fewer are filled up.
        most_rows: the most that it may have by what the file says; 0 where it says nothing.
        typical_sizes: at which equal axes were found to run beside each other, by name; empty
            where equal ones do.
        equal_axis_size: what equal axes without a size of their own are measured at; 0 where
            none is known that runs.
        concatenated: ragged inputs are concatenated flat, so a batch is one run, never cut.
        alone: the rows of a request belong together, so each request is a run of its own.
        states: what sequences carry from step to step; not among the inputs and outputs.
        sizes: the only size of a free axis, by its name, where config.pbtxt fixes what the graph
            leaves open: it is never padded to another.
        checked: requests whose types and shapes were found to fit, by these; in bounded number.
        run_shapes: the shapes of inputs and outputs, and the bytes of all, of runs that copy
            nothing: by bucket, equal sizes and omitted inputs; likewise.
    """

    batched: bool
    axes: tuple[str, ...]
    limits: Mapping[str, int]
    inputs: tuple[InputLayout, ...]
    outputs: tuple[OutputLayout, ...]
    equal_axes: tuple[str, ...] = ()
    concatenated: bool = False
    alone: bool = False
    states: tuple[State, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    least_rows: int = 1
    most_rows: int = 0
    typical_sizes: Mapping[str, int] = field(default_factory=dict)
    equal_axis_size: int = EQUAL_AXIS_SIZE
    checked: dict[tuple[object, ...], RequestShape] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )
    run_shapes: dict[
        tuple[Shape, Shape, tuple[str, ...]], tuple[Mapping[str, Shape], Mapping[str, Shape], int]
    ] = field(init=False, default_factory=dict, compare=False, repr=False)

    @property
    def smallest(self) -> Shape:
        """The smallest size that runs of each padded axis."""
        return tuple([self.least.get(name, 1) for name in self.axes])


def build_layout(
    config: ModelConfig,
    signature: Signature,
    shape_policy: ShapePolicy = ANY_SHAPE,
    *,
    unpadded: Collection[str] = (),
    proven: bool = False,
) -> Layout:
    """Return the layout of a model.

    Axes are padded where the configuration marks an input `allow_ragged_batch`, or where the
    engine needs static shapes. Nothing is padded if an output has a free dimension that is not
    known to follow an input's, or a state one at all: padding could not be cut off again there.

    `shape_policy` is the graph's; what never differs among the shapes that it has fixed is
    padded if the configuration says so (`freed_dims.py`). `unpadded` are axes that must not be.
    Names of axes are `proven` where runs have shown that lengths of one name go together: then a
    request has one size for each, since some engines broadcast what others refuse.

    Raises:
        ConfigError: configuration and graph contradict each other; both sides are named.
    """
    if config.concatenate and shape_policy.prepared:
        raise ConfigError(
            "concatenated inputs have another size in every batch, and this engine needs static "
            "shapes; set the parameter 'ragged' to pad and remove batch_input and batch_output"
        )
    signature = free_fixed_dims(config, signature, shape_policy.fixed)
    least_rows, most_rows = _rows_of_runs(config, signature)  # by the graph's own names
    config = with_controls(config, signature)
    states = placed_states(config, signature)
    signature = agreed_signature(config, without_states(config, signature))
    inputs = tuple(_input(spec, config) for spec in signature.inputs if _used(spec, config))
    wanted = [spec for spec in signature.outputs if tensor_named(config.outputs, spec.name)]
    free = _free_axes(inputs)
    outputs = tuple(_output(spec, config, signature, free) for spec in wanted or signature.outputs)
    marked = _padded_axes(config, inputs, prepared=shape_policy.prepared)
    padded = tuple(name for name in marked if name not in unpadded)
    if padded and not _can_be_padded(config, inputs, outputs, prepared=shape_policy.prepared):
        padded = ()
    equal_axes = _equal_axes(inputs, padded, proven=proven)
    return Layout(
        batched=config.max_batch_size > 0,
        axes=padded,
        equal_axes=tuple(name for _, name in equal_axes),
        limits=signature.axis_limits,
        inputs=tuple(
            replace(
                i,
                axes=_indices(i, padded, equal_axes),
                counted=_counted(config, i, padded, [name for _, name in equal_axes]),
            )
            for i in inputs
        ),
        outputs=tuple(replace(o, axes=_output_indices(o, padded, equal_axes)) for o in outputs),
        concatenated=config.concatenate,
        states=states,
        sizes=_declared_sizes(config, inputs),
        least=signature.axis_least,
        least_rows=least_rows,
        most_rows=most_rows,
    )


def outside_layout(config: ModelConfig) -> Layout:
    """Return the layout of a model that has steps in place of a graph, as clients see it.

    Nothing is padded here, and free dims need not agree: each step's own layout says what of its
    inputs is. Nor is an input made here, whatever it is called: an optional one that was not sent
    is left out, and the steps that take it make it, or run without.
    """
    return Layout(
        batched=config.max_batch_size > 0,
        axes=(),
        limits={},
        inputs=tuple(
            InputLayout(
                name=item.name,
                dtype=item.dtype,
                dims=item.graph_dims,
                axes=(-1,) * len(item.graph_dims),
                names=_own_names(item.name, item.graph_dims),
                fill=0.0,
                made="",
                optional=item.optional,
            )
            for item in config.inputs
        ),
        outputs=tuple(
            OutputLayout(
                name=item.name,
                dtype=item.dtype,
                dims=item.graph_dims,
                axes=(-1,) * len(item.graph_dims),
                names=_own_names(item.name, item.graph_dims),
            )
            for item in config.outputs
        ),
    )


def _rows_of_runs(config: ModelConfig, signature: Signature) -> tuple[int, int]:
    """Return the fewest rows of a run, and the most, 0 if there is no such number.

    Concatenated inputs have as many as have come.
    """
    if config.concatenate or not config.max_batch_size:
        return 1, 0
    batch = [spec.axes[0] for spec in signature.inputs if spec.axes]
    limits = [signature.axis_limits[name] for name in batch if name in signature.axis_limits]
    least = max((signature.axis_least.get(name, 1) for name in batch), default=1)
    return least, min(limits, default=0)


def _declared_sizes(config: ModelConfig, inputs: Sequence[InputLayout]) -> dict[str, int]:
    """Return the sizes that config.pbtxt gives to free axes, where its inputs tell of just one.

    What an input says that every request sends goes before what others say or leave open.
    """
    required: dict[str, set[int]] = {}
    sizes_of: dict[str, set[int]] = {}
    for item in inputs:
        tensor = tensor_named(config.inputs, item.name)
        if tensor is None or item.source:
            continue
        for dim, name, size in zip(item.dims, item.names, tensor.graph_dims, strict=True):
            if dim < 0:
                sizes_of.setdefault(name, set()).add(size)
                if size > 0 and not tensor.optional:
                    required.setdefault(name, set()).add(size)
    chosen = {name: required.get(name, sizes) for name, sizes in sizes_of.items()}
    return {
        name: min(sizes) for name, sizes in chosen.items() if len(sizes) == 1 and min(sizes) > 0
    }


def _used(spec: TensorSpec, config: ModelConfig) -> bool:
    """Whether an input is given to the graph: all but optional ones that are not declared."""
    described = any(spec.name in block.names for block in config.batch_inputs)
    declared = described or tensor_named(config.inputs, spec.name) is not None
    return declared or bool(generated_by(config, spec)) or not spec.optional


def _input(spec: TensorSpec, config: ModelConfig) -> InputLayout:
    """Return an input's layout; `axes` is filled in when the padded axes are known."""
    tensor = tensor_named(config.inputs, spec.name)
    block = next((b for b in config.batch_inputs if spec.name in b.names), None)
    dims, names = _row(spec, config)
    how, source = generated_by(config, spec), ""
    common = is_common(config, spec)
    if common:
        dims = spec.dims if tensor is None else tensor.graph_dims
        names = _own_names(spec.name, dims)
    if block is not None:
        dims, names, how, source = (), (), block.kind, block.sources[0]
    elif tensor is not None and tensor.ragged and config.concatenate:
        dims, source = tensor.graph_dims, spec.name
        names = _own_names(spec.name, dims)
    return InputLayout(
        name=spec.name,
        dtype=spec.dtype,
        dims=dims,
        axes=(),
        names=names,
        fill=_stored(spec, config.pad.get(spec.name)),
        made=how,
        number=_stored(spec, float(generator_detail(config, spec.name)), "generate")
        if how == "number"
        else 0.0,
        source=source,
        common=spec.dims if common else None,
        optional=spec.optional,
    )


def _output(
    spec: TensorSpec, config: ModelConfig, signature: Signature, free: Container[str]
) -> OutputLayout:
    """Return an output's layout; a free dim that no input has is what config.pbtxt fixes it to."""
    block = next((b for b in config.batch_outputs if spec.name in b.names), None)
    tensor = tensor_named(config.outputs, spec.name)
    dims, names = _row(spec, config)
    if block is not None and tensor is not None:
        dims, names = tensor.graph_dims, _own_names(spec.name, tensor.graph_dims)
    lengths = tuple(signature.lengths.get(name, "") for name in names)
    if tensor is not None and dims:  # a scalar, which the host does not know, is declared as [1]
        dims = tuple(
            declared if dim < 0 and name not in free and not own else dim
            for dim, declared, name, own in zip(
                dims, tensor.graph_dims, names, lengths, strict=True
            )
        )
    return OutputLayout(
        name=spec.name,
        dtype=spec.dtype,
        dims=dims,
        axes=(),
        names=names,
        source=block.sources[0] if block is not None else "",
        lengths=lengths if any(lengths) else (),
        fill=_stored(spec, config.pad.get(spec.name)),
    )


def _row(spec: TensorSpec, config: ModelConfig) -> tuple[Shape, tuple[str, ...]]:
    """Return one row's dims and axis names; what has no name gets one that nothing else has."""
    skip = 1 if config.max_batch_size else 0
    own = _own_names(spec.name, spec.dims)
    names = tuple(name or other for name, other in zip(spec.axes, own, strict=True))
    return spec.dims[skip:], names[skip:]


def _own_names(tensor: str, dims: Shape) -> tuple[str, ...]:
    return tuple(f"{tensor}.{index}" for index in range(len(dims)))


def _stored(spec: TensorSpec, value: float | None, key: str = "pad") -> float:
    """Return the value of a parameter of this family as the tensor's type stores it.

    Raises:
        ConfigError: the type cannot hold it.
    """
    if value is None and not spec.fill:
        return 0.0
    value = spec.fill if value is None else value
    dtype = spec.dtype.numpy
    if spec.dtype.name == "BF16":
        return float(float32_to_bf16(np.array([value]))[0])
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            fits = math.isinf(float(np.array(value).astype(dtype))) == math.isinf(value)
    elif dtype.kind == "b":
        fits = value in (0.0, 1.0)
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = float(value).is_integer() and limits.min <= int(value) <= limits.max
    else:
        fits = False  # BYTES is padded with empty strings
    if not fits:
        raise ConfigError(
            f"parameter '{key}.{spec.name}' is {value:g}, which {spec.dtype.name} cannot hold"
        )
    return value


def _counted(
    config: ModelConfig, item: InputLayout, padded: Sequence[str], equal_axes: Sequence[str]
) -> int:
    """Return the index of the axis that an input counts; 0 where there is none.

    Raises:
        ConfigError: it is not clear which, or there is no such axis.
    """
    axes = [*padded, *equal_axes]
    if item.made != "lengths" or not axes:
        return 0
    asked, remedy = generator_detail(config, item.name), f"parameter 'generate.{item.name}'"
    if asked and asked not in axes:
        raise ConfigError(f"{remedy} names axis {asked!r}; the axes are {', '.join(axes)}")
    if not asked and len(set(padded or equal_axes)) > 1:
        raise ConfigError(
            f"input {item.name!r} holds lengths, of which of the axes {', '.join(axes)}? say so "
            f"with the {remedy}, such as 'lengths:{axes[0]}'"
        )
    return axes.index(asked) if asked else 0


def _padded_axes(
    config: ModelConfig, inputs: tuple[InputLayout, ...], *, prepared: bool
) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for item in inputs:
        tensor = tensor_named(config.inputs, item.name)
        ragged = tensor is not None and tensor.ragged and not config.concatenate
        if prepared or ragged:
            names |= dict.fromkeys(_free_axes((item,)))
    return tuple(names)


def _free_axes(inputs: tuple[InputLayout, ...]) -> tuple[str, ...]:
    """Return the names of the free axes of inputs that are written row by row."""
    return tuple(
        dict.fromkeys(
            name
            for item in inputs
            if not item.source
            for dim, name in zip(item.dims, item.names, strict=True)
            if dim < 0
        )
    )


def _can_be_padded(
    config: ModelConfig,
    inputs: tuple[InputLayout, ...],
    outputs: tuple[OutputLayout, ...],
    *,
    prepared: bool,
) -> bool:
    """Whether padding can be told from what is real afterwards; the log says why not.

    Raises:
        ConfigError: it cannot, and the engine needs it.
    """
    unknown = _uncuttable(config, inputs, outputs)
    if unknown and prepared:
        raise ConfigError(
            f"output {unknown!r} has a free dimension that no input's is known to equal, and "
            f"this engine needs static shapes; name it: parameter 'axes.{unknown}'"
        )
    growing = _growing(config)
    if growing and prepared:
        raise ConfigError(
            f"state {growing!r} has dims with -1, so it may grow by an input's padding, and this "
            "engine needs static shapes; give the state a size for every -1"
        )
    if unknown:
        log.warning(
            "requests of different lengths are not batched: output %r has a free dimension that "
            "no input's is known to equal; name it with the parameter 'axes.%s'",
            unknown,
            unknown,
        )
    if growing:
        log.warning(
            "requests of different lengths are not batched: state %r has dims with -1, so it may "
            "grow by an input's padding, which later steps would take for what was sent",
            growing,
        )
    return not (unknown or growing)


def _growing(config: ModelConfig) -> str:
    """Return the first state whose size may change from step to step, "" where none's does."""
    states = () if config.sequence is None else config.sequence.states
    return next((state.input for state in states if -1 in state.dims), "")


def _uncuttable(
    config: ModelConfig, inputs: tuple[InputLayout, ...], outputs: tuple[OutputLayout, ...]
) -> str:
    """Return the first output with a free dimension of unknown origin; "" where there is none.

    `axes.<output>` settles it.
    """
    known = _free_axes(inputs)
    unknown = (
        output.name
        for output in outputs
        if output.name not in config.axes
        and any(
            dim < 0 and name not in known and not own
            for dim, name, own in zip(output.dims, output.names, output.lengths_from, strict=True)
        )
    )
    return next(unknown, "")


def _equal_axes(
    inputs: tuple[InputLayout, ...], padded: tuple[str, ...], *, proven: bool
) -> list[tuple[str, str]]:
    """Return (input, axis name) of the free axes that are not padded; made inputs come last."""
    equal_axes: list[tuple[str, str]] = []
    for item in sorted(inputs, key=lambda item: bool(item.made)):
        known = [*padded, *(name for _, name in equal_axes)] if item.made or proven else padded
        equal_axes += [(item.name, name) for name in _free_axes((item,)) if name not in known]
    return equal_axes


def _indices(
    item: TensorLayout, padded: tuple[str, ...], equal_axes: list[tuple[str, str]]
) -> tuple[int, ...]:
    """Return per dimension the free axis that it is: the item's own, else the first so named."""
    free = [*padded, *(name for _, name in equal_axes)]
    own = {
        name: len(padded) + at for at, (owner, name) in enumerate(equal_axes) if owner == item.name
    }
    return tuple(
        own.get(name, free.index(name)) if dim < 0 and name in free and not item.source else -1
        for dim, name in zip(item.dims, item.names, strict=True)
    )


def _output_indices(
    item: OutputLayout, padded: tuple[str, ...], equal_axes: list[tuple[str, str]]
) -> tuple[int, ...]:
    """As `_indices`; a dimension with lengths of its own follows no input, whatever its name."""
    found = _indices(item, padded, equal_axes)
    return tuple(-1 if own else axis for axis, own in zip(found, item.lengths_from, strict=True))
