"""What a configuration leaves out, from the graph: inputs, outputs, batching."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.model.config.cpp_ge_keys import runs_row_by_row
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.validate import WELL_KNOWN, with_axes
from ge_backend.tensors import Shape, Signature, TensorSpec

__all__ = ["completed"]

log = logging.getLogger(__name__)

# What a model with a free batch dimension gets when config.pbtxt says nothing.
DEFAULT_MAX_BATCH_SIZE = 32


def completed(
    config: Mapping[str, Any],
    ours: ModelConfig,
    signature: Signature,
    fixed_shapes: Sequence[Mapping[str, Shape]] = (),
    *,
    apart: bool = True,
) -> dict[str, Any]:
    """Return the host's configuration with inputs, outputs and batching filled in.

    A `max_batch_size` is kept, also 0, and chosen where there is none.
    A configuration that names its inputs and outputs is returned as it is. Where the graph takes an
    attention mask, padding is taken for harmless, so the inputs become ragged and the mask
    optional. What `sequence_batching` names is left out: the host sends controls, and states stay
    with us. So are outputs without dimensions, as CLIP's `logit_scale`, with a line in the log.
    Without `apart` the rows of a request belong together, so that requests are not batched.

    Raises:
        ConfigError: the graph does not say either, as TorchScript, or the host cannot say it.
    """
    whole = dict(config)
    if ours.inputs and ours.outputs:
        return whole
    if signature.outputs and not signature.inputs:
        raise ConfigError(
            "the graph has no inputs, so nothing that it computes depends on a request, and the "
            "host takes no such model; give it an input in the graph, or answer without a model"
        )
    for what, specs in (("input", signature.inputs), ("output", signature.outputs)):
        if not specs:
            raise ConfigError(
                f"model configuration must contain at least one {what}, none were specified; the "
                "model file does not say what tensors it has, so declare them in config.pbtxt"
            )
    signature = with_axes(signature, ours)
    rows = ours.max_batch_size
    if apart and not rows and "max_batch_size" not in config:
        rows = _batch_rows(ours, signature, compiled=bool(fixed_shapes))
    whole["max_batch_size"] = rows
    known = _for_clients(signature, ours)
    if not ours.inputs:
        whole["input"] = [_input(spec, ours, known, batched=rows > 0) for spec in known.inputs]
    if not ours.outputs:
        whole["output"] = [_block(spec, batched=rows > 0) for spec in _served(known.outputs)]
    scheduled = {"sequence_batching", "ensemble_scheduling"} & whole.keys()
    if rows and not (scheduled or runs_row_by_row(config)):
        whole.setdefault("dynamic_batching", {})
    return whole


def _for_clients(signature: Signature, ours: ModelConfig) -> Signature:
    """Return the tensors that clients know: not the controls, nor either end of a state."""
    if ours.sequence is None:
        return signature
    states = ours.sequence.states
    taken = {state.input for state in states} | {each.name for each in ours.sequence.controls}
    given = {state.output for state in states}
    return replace(
        signature,
        inputs=tuple(spec for spec in signature.inputs if spec.name not in taken),
        outputs=tuple(spec for spec in signature.outputs if spec.name not in given),
    )


def _served(outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the outputs that have dimensions; the host knows no others without a batch."""
    served = [spec for spec in outputs if spec.dims]
    others = ", ".join(spec.name for spec in outputs if not spec.dims)
    if others and not served:
        raise ConfigError(
            f"the graph's outputs ({others}) are scalars, or their shapes are not in the file; the "
            "host knows none: with max_batch_size: 0 declare one as dims: [ 1 ], or give one of "
            "them a dimension in the graph"
        )
    if others:
        log.warning("left out %s: a scalar, or of a shape that is not in the file", others)
    return served


def _batch_rows(ours: ModelConfig, signature: Signature, *, compiled: bool) -> int:
    """Return the batch size where every tensor begins with one and the same free axis, else 0.

    It is a default, or the largest that a file was compiled for. A model that declares all
    dimensions of a tensor has none for batches, as does one that declares one value of an output
    without dimensions. Others of these, which are not served, say nothing.
    """
    declared = {tensor.name: len(tensor.graph_dims) for tensor in (*ours.inputs, *ours.outputs)}
    specs = (*signature.inputs, *(spec for spec in signature.outputs if spec.dims))
    axes = {spec.name: spec.axes or ("",) for spec in specs}
    first = {axes[spec.name][0] if spec.dims[:1] == (-1,) else "" for spec in specs}
    if "" in first or any(declared.get(spec.name) == len(spec.dims) for spec in specs):
        return 0
    if any(spec.name in declared for spec in signature.outputs if not spec.dims):
        return 0
    if len(first) != 1:
        log.warning(
            "requests are not batched: the first axes of the tensors have the names %s; where they "
            "are one, say so with 'axes.<tensor>', or set max_batch_size",
            ", ".join(sorted(first)),
        )
        return 0
    (batch,) = first
    mixed = [name for name, names in axes.items() if batch in names[1:]]
    if mixed and signature.input(mixed[0]) is None:  # else the file has one name for all
        log.warning(
            "requests are not batched: the batch's axis %r comes again behind the first of %r, so "
            "what a row holds depends on the others of its batch; where that name is wrong, give "
            "another with 'axes.%s'",
            batch,
            mixed[0],
            mixed[0],
        )
        return 0
    limit = signature.axis_limits.get(batch, DEFAULT_MAX_BATCH_SIZE)
    return limit if compiled else min(DEFAULT_MAX_BATCH_SIZE, limit)


def _input(
    spec: TensorSpec, ours: ModelConfig, signature: Signature, *, batched: bool
) -> dict[str, Any]:
    """Return an input's declaration; what follows from others can be left out, as a mask of theirs.

    One over more than these have, as over what came before and what is new, has to be sent.
    """
    made = {**WELL_KNOWN, **ours.generate}
    sent = [_free_axes(each) for each in signature.inputs if each.name not in made]
    known = {axis for axes in sent for axis in axes} - {""}
    masks = (each for each in signature.inputs if made.get(each.name) == "mask")
    mask = next((each for each in masks if _free_axes(each) <= known), None)
    block, axes = _block(spec, batched=batched), _free_axes(spec)
    can_be_made = (batched or not spec.dims) and spec.name in made and axes <= known
    block["optional"] = spec.optional or can_be_made
    if batched and mask is not None and axes <= _free_axes(mask):
        block["allow_ragged_batch"] = True
    return block


def _free_axes(spec: TensorSpec) -> set[str]:
    """Return the names of a tensor's free axes behind the batch; "" for those without."""
    return {axis for dim, axis in zip(spec.dims[1:], spec.axes[1:], strict=True) if dim < 0}


def _block(spec: TensorSpec, *, batched: bool) -> dict[str, Any]:
    """Return a tensor's declaration; the host takes no empty dims, so one value is `[1]` there.

    Source: Triton's model configuration, "Reshape".
    """
    dims = list(spec.dims[1:] if batched else spec.dims)
    block = {"name": spec.name, "data_type": spec.dtype.config_name, "dims": dims or [1]}
    return block if dims or not batched else {**block, "reshape": {"shape": []}}
