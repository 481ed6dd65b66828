"""Whether configuration and graph agree: every contradiction is found at load, and named.

Source for what concatenated tensors look like to a graph: onnxruntime_backend src/onnxruntime.cc (a
ragged input must be `[-1]`), backend src/backend_input_collector.cc and backend_output_responder.cc
(batch inputs and outputs), all in github.com/triton-inference-server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ge_backend.errors import ConfigError
from ge_backend.model.config.declared import Declared
from ge_backend.model.config.model import BatchInput, BatchOutput, ModelConfig, TensorConfig
from ge_backend.tensors import Signature, TensorSpec, agree

__all__ = [
    "WELL_KNOWN",
    "agreed_signature",
    "generated_by",
    "generator_detail",
    "is_common",
    "tensor_named",
    "with_axes",
]

# What the field calls inputs that follow from the others (Hugging Face's names first).
WELL_KNOWN = {
    "attention_mask": "mask",
    "input_mask": "mask",
    "input_lengths": "lengths",
    "position_ids": "positions",
    "token_type_ids": "zeros",
}

# What the backend makes that does not differ between rows.
ALIKE = ("zeros", "number")


def agreed_signature(config: ModelConfig, signature: Signature) -> Signature:
    """Return the signature, completed by what the configuration says about its tensors.

    Where a file has no signature (TorchScript) the declared one counts; `axes.<tensor>` names
    dimensions, `lengths.<axis>` the outputs that tell real sizes.

    Raises:
        ConfigError: configuration and graph contradict each other; both sides are named.
    """
    agreed = _with_lengths(with_axes(_or_declared(signature, config), config), config)
    _check_batch_blocks(config, agreed)
    _check_names(config, agreed)
    _check_made(config, agreed)
    scattered = {name for block in config.batch_outputs for name in block.names}
    for spec in agreed.inputs:
        tensor = tensor_named(config.inputs, spec.name)
        if tensor is not None and tensor.ragged and config.concatenate:
            _check_dtype("input", tensor, spec)
            _check_flat(tensor, spec)
        elif tensor is not None:
            _check_dtype("input", tensor, spec)
            if not is_common(config, spec):
                _check_dims("input", tensor, spec, batched=config.max_batch_size > 0)
    for spec in agreed.outputs:
        tensor = tensor_named(config.outputs, spec.name)
        if tensor is not None:
            _check_dtype("output", tensor, spec)
            if spec.name not in scattered:
                _check_dims("output", tensor, spec, batched=config.max_batch_size > 0)
                if config.max_batch_size:
                    _check_rows(spec, agreed.inputs)
                if config.max_batch_size > 1:
                    _check_apart(spec, agreed.inputs)
    return agreed


def tensor_named(tensors: Iterable[TensorConfig], name: str) -> TensorConfig | None:
    """Return the declaration of that name, or None."""
    return next((tensor for tensor in tensors if tensor.name == name), None)


def generated_by(config: ModelConfig, spec: TensorSpec) -> str:
    """Return how the backend makes an input that clients need not send, or "".

    Zeros are not made for a graph that runs without, unless config.pbtxt asks for them.
    """
    tensor = tensor_named(config.inputs, spec.name)
    if tensor is not None and not tensor.optional:
        return ""
    how = _generator_of(config, spec.name)[0]
    spared = spec.optional and how == "zeros" and spec.name not in config.generate
    return "" if spared else how


def generator_detail(config: ModelConfig, name: str) -> str:
    """Return the axis whose sizes such an input holds, or its number, if config.pbtxt says it."""
    return _generator_of(config, name)[1]


def is_common(config: ModelConfig, spec: TensorSpec) -> bool:
    """Whether an input has no dimension for rows in the graph, so that a run has one for all.

    It is declared as the graph has it; one without dimensions, which the host does not know, as
    `[1]`.
    """
    if not config.max_batch_size:
        return not spec.dims
    how, tensor = generated_by(config, spec), tensor_named(config.inputs, spec.name)
    if -1 in spec.dims or how not in ("", *ALIKE):
        return False
    if tensor is None:
        return how != ""
    return tensor.graph_dims == spec.dims or (not spec.dims and tensor.graph_dims == (1,))


def _generator_of(config: ModelConfig, name: str) -> tuple[str, str]:
    how, _, axis = config.generate.get(name, WELL_KNOWN.get(name, "")).partition(":")
    return how, axis


def _or_declared(signature: Signature, config: ModelConfig) -> Signature:
    declared = Declared.of(config)
    return replace(
        signature,
        inputs=signature.inputs or declared.inputs + declared.described,
        outputs=signature.outputs or declared.outputs,
    )


def with_axes(signature: Signature, config: ModelConfig) -> Signature:
    """Return the signature with the names that `axes.<tensor>` gives, what bounds an axis too.

    Raises:
        ConfigError: such a parameter does not fit the graph.
    """
    specs = (*signature.inputs, *signature.outputs)
    pairs = [
        pair
        for spec in specs
        for pair in zip(spec.axes, config.axes.get(spec.name, ()), strict=False)
    ]
    for name in config.axes:
        if all(spec.name != name for spec in specs):
            known = ", ".join(spec.name for spec in specs)
            raise ConfigError(f"parameter 'axes.{name}': the graph's tensors are {known}")

    def named(spec: TensorSpec) -> TensorSpec:
        axes = config.axes.get(spec.name)
        if axes is None:
            return spec
        if len(axes) != len(spec.dims):
            raise ConfigError(
                f"parameter 'axes.{spec.name}' names {len(axes)} dimensions, the graph has "
                f"{len(spec.dims)}: {spec.describe()}"
            )
        return replace(spec, axes=axes)

    return replace(
        signature,
        inputs=tuple(map(named, signature.inputs)),
        outputs=tuple(map(named, signature.outputs)),
        axis_limits=_renamed(signature.axis_limits, pairs, min),
        axis_least=_renamed(signature.axis_least, pairs, max),
    )


def _renamed(
    bounds: Mapping[str, int],
    pairs: Iterable[tuple[str, str]],
    tighter: Callable[[int, int], int],
) -> dict[str, int]:
    """Return bounds by the axes' new names, too; the tighter one where several get one name."""
    renamed = dict(bounds)
    for old, new in pairs:
        if old in bounds:
            renamed[new] = tighter(bounds[old], renamed.get(new, bounds[old]))
    return renamed


def _with_lengths(signature: Signature, config: ModelConfig) -> Signature:
    """Return the signature with the outputs that `lengths.<axis>` names."""
    first = 1 if config.max_batch_size else 0
    for axis, name in config.lengths.items():
        axes = {axis for spec in signature.outputs for axis in spec.axes[first:] if axis}
        if axis not in axes:
            raise ConfigError(
                f"parameter 'lengths.{axis}': the outputs' axes are {', '.join(sorted(axes))}; "
                "name further ones with 'axes.<output>'"
            )
        spec = signature.output(name)
        if spec is None or not _has_lengths(spec, axis, first):
            found = "not an output" if spec is None else f"{spec.describe()}"
            raise ConfigError(
                f"parameter 'lengths.{axis}' names {name!r}, which is {found}; expected an output "
                "of one whole number per row, or a mask over the axis"
            )
    return replace(signature, lengths={**signature.lengths, **config.lengths})


def _has_lengths(spec: TensorSpec, axis: str, first: int) -> bool:
    """Whether an output can tell sizes along an axis: a number or a mask for each row."""
    row = tuple(zip(spec.dims, spec.axes, strict=True))[first:]
    return spec.dtype.numpy.kind in "iub" and (
        row in ((), ((1, ""),)) or [name for _, name in row] == [axis]
    )


def _check_names(config: ModelConfig, signature: Signature) -> None:
    for what, tensors, specs in (
        ("input", config.inputs, signature.inputs),
        ("output", config.outputs, signature.outputs),
    ):
        graph = {spec.name for spec in specs}
        for tensor in tensors:
            if tensor.name not in graph:
                raise ConfigError(
                    f"{what} {tensor.name!r} of config.pbtxt is not in the graph, which has "
                    f"{', '.join(sorted(graph))}"
                )
    described = {name for block in config.batch_inputs for name in block.names}
    for spec in signature.inputs:
        declared = tensor_named(config.inputs, spec.name) or spec.name in described
        if not (declared or generated_by(config, spec) or spec.optional):
            raise ConfigError(
                f"the graph's input {spec.name!r} ({spec.describe()}) is not in config.pbtxt; "
                f"declare it, or let the backend make it with 'generate.{spec.name}'"
            )
    for name in config.generate:
        if signature.input(name) is None:
            known = ", ".join(spec.name for spec in signature.inputs)
            raise ConfigError(f"parameter 'generate.{name}': the graph's inputs are {known}")
    for name in config.pad:
        if signature.input(name) is None and signature.output(name) is None:
            known = ", ".join(spec.name for spec in (*signature.inputs, *signature.outputs))
            raise ConfigError(f"parameter 'pad.{name}': the graph's tensors are {known}")


def _check_made(config: ModelConfig, signature: Signature) -> None:
    """See that clients send something of the size of whatever the backend always has to make."""
    first = 1 if config.max_batch_size else 0

    def free_axes(spec: TensorSpec) -> list[str]:
        dims = list(enumerate(zip(spec.dims, spec.axes, strict=True)))[first:]
        return [axis or f"{spec.name}.{index}" for index, (dim, axis) in dims if dim < 0]

    sent = [spec for spec in signature.inputs if tensor_named(config.inputs, spec.name)]
    known = {axis for spec in sent for axis in free_axes(spec)}
    described = {name for block in config.batch_inputs for name in block.names}
    for spec in signature.inputs:
        if spec in sent or spec.name in described or not generated_by(config, spec):
            continue
        if is_common(config, spec):
            continue
        if config.max_batch_size > 1 and spec.dims[:1] != (-1,):
            raise ConfigError(
                f"input {spec.name!r}, which the backend makes for each row, is {spec.describe()} "
                "in the graph: its first dimension is not free, so it has no batch dimension; set "
                "max_batch_size: 0, or 1, or export it with one"
            )
        for axis in free_axes(spec):
            if axis not in known:
                raise ConfigError(
                    f"axis {axis!r} of {spec.name!r} is in no input that clients send, so nobody "
                    f"knows its size; name its dimensions too, with 'axes.{spec.name}'"
                )


def _check_batch_blocks(config: ModelConfig, signature: Signature) -> None:
    """See that `batch_input` and `batch_output` can be honoured."""
    blocks: list[BatchInput | BatchOutput] = [*config.batch_inputs, *config.batch_outputs]
    if blocks and not config.concatenate:
        raise ConfigError(
            "batch_input and batch_output describe concatenated inputs, but the parameter 'ragged' "
            f"is {config.ragged!r}; set it to auto or concatenate, or remove them"
        )
    for block in blocks:
        kind = block.kind
        if len(block.sources) != 1 or tensor_named(config.inputs, block.sources[0]) is None:
            known = ", ".join(tensor.name for tensor in config.inputs)
            raise ConfigError(
                f"{kind} has source_input {list(block.sources)}; expected one of {known}"
            )
        if not block.names:
            raise ConfigError(f"{kind} of {block.sources[0]!r} has no target_name; give it one")
    for given in config.batch_inputs:
        for name in given.names:
            _check_described(given, name, config, signature)
    for wanted in config.batch_outputs:
        for name in wanted.names:
            _check_scattered(wanted, name, config)


def _check_described(
    block: BatchInput, name: str, config: ModelConfig, signature: Signature
) -> None:
    makers = [other.kind for other in config.batch_inputs if name in other.names]
    if len(makers) > 1 or tensor_named(config.inputs, name) is not None:
        raise ConfigError(
            f"batch_input {name!r} is also an input or the target of another batch_input; the "
            "backend makes it, so name it once and nowhere else"
        )
    spec = signature.input(name)
    if spec is None:
        known = ", ".join(spec.name for spec in signature.inputs)
        raise ConfigError(f"batch_input {name!r} is not an input of the graph, which has {known}")
    rank = 2 if block.kind == "BATCH_ITEM_SHAPE" else 1
    if spec.dtype != block.dtype or len(spec.dims) != rank:
        raise ConfigError(
            f"batch_input {name!r} of kind {block.kind} is {block.dtype.name} with {rank} "
            f"dimension(s), and {spec.describe()} in the graph; make them agree"
        )


def _check_scattered(block: BatchOutput, name: str, config: ModelConfig) -> None:
    output = tensor_named(config.outputs, name)
    if output is None:
        known = ", ".join(tensor.name for tensor in config.outputs)
        raise ConfigError(f"batch_output {name!r} is not a declared output; those are {known}")
    source = tensor_named(config.inputs, block.sources[0])
    rank = len(source.graph_dims) if source is not None else 0
    if any(dim < 0 and index >= rank for index, dim in enumerate(output.graph_dims)):
        raise ConfigError(
            f"batch_output {name!r} has dims {list(output.graph_dims)}; its free ones take their "
            f"size from {block.sources[0]!r}, which has only {rank}"
        )


def _check_dtype(what: str, tensor: TensorConfig, spec: TensorSpec) -> None:
    if tensor.dtype != spec.dtype:
        raise ConfigError(
            f"{what} {tensor.name!r} is {tensor.dtype.config_name} in config.pbtxt and "
            f"{spec.dtype.config_name} in the graph; make them agree"
        )


def _check_flat(tensor: TensorConfig, spec: TensorSpec) -> None:
    if spec.dims != (-1,):
        raise ConfigError(
            f"input {tensor.name!r} is concatenated (allow_ragged_batch with batch_input or "
            f"batch_output), so the graph must take it as [-1]; it is {spec.describe()}"
        )
    if tensor.optional:
        raise ConfigError(
            f"input {tensor.name!r} is concatenated, so every request must send it; remove "
            "'optional: true'"
        )


def _check_apart(output: TensorSpec, inputs: Iterable[TensorSpec]) -> None:
    """See that an output has not the batch's axis twice, as similarities of rows to rows have.

    Where an input has it twice, too, the file has one name for all.
    """
    batch = output.axes[0]
    if batch and batch in output.axes[1:] and all(batch not in spec.axes[1:] for spec in inputs):
        raise ConfigError(
            f"output {output.name!r} is {output.describe()} in the graph: the batch's axis comes "
            "again behind its first, so what a row holds depends on the others of its batch; set "
            "max_batch_size: 0, or 1; where the file's names are wrong, give others with "
            f"'axes.{output.name}'"
        )


def _check_rows(output: TensorSpec, inputs: Iterable[TensorSpec]) -> None:
    """See that an output does not begin with another axis of the inputs than their first."""
    first, behind = set[str](), set[str]()
    for spec in inputs:
        first.update(spec.axes[:1])
        behind.update(spec.axes[1:])
    if output.axes[0] in behind - first - {""}:
        raise ConfigError(
            f"output {output.name!r} is {output.describe()} in the graph: its first dimension is "
            f"{output.axes[0]!r}, which inputs have behind the batch, so its rows are not those of "
            "requests; transpose it in the graph, or set max_batch_size: 0; where the file's names "
            f"are wrong, give others with 'axes.{output.name}'"
        )


def _check_dims(what: str, tensor: TensorConfig, spec: TensorSpec, *, batched: bool) -> None:
    if not spec.dims and (batched or tensor.graph_dims not in ((), (1,))):
        one = "export it with its dimensions"
        if what == "input" or not batched:
            one = f"declare one value as dims: [ 1 ], or {one}"
        raise ConfigError(
            f"{what} {tensor.name!r} has dims {list(tensor.dims)} in config.pbtxt and none in the "
            f"graph: it is a scalar, or its shape is not in the file; {one}"
        )
    if batched and spec.dims[0] >= 0:
        whole = ""
        if what == "input" and -1 not in spec.dims:
            whole = f"; what is the same for all rows is declared whole, dims: {list(spec.dims)}"
        raise ConfigError(
            f"{what} {tensor.name!r} is {spec.describe()} in the graph: its first dimension is not "
            "free, so it has no batch dimension; set max_batch_size: 0 or export it with one"
            f"{whole}"
        )
    dims = spec.dims[1:] if batched else spec.dims or (1,)
    if not agree(dims, tensor.graph_dims):
        extra = " behind the batch dimension" if batched else ""
        raise ConfigError(
            f"{what} {tensor.name!r} has dims {list(tensor.graph_dims)} in config.pbtxt and "
            f"{list(dims)} in the graph{extra}; make them agree"
        )
