"""What sizes outputs really have, which a file may declare otherwise: engines only warn of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ge_backend.serving.assumptions.lengths import Lengths, named
from ge_backend.tensors import Shape, Signature, TensorSpec

__all__ = ["ObservedRun", "fitted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """One run: the sizes of its axes, by name, and the shapes of its outputs."""

    sizes: Mapping[str, int]
    shapes: Mapping[str, Shape]


def fitted(
    signature: Signature, lengths: Lengths, seen: Sequence[ObservedRun], given: Collection[str]
) -> Signature:
    """Return the signature with inputs and outputs as they were seen.

    An output's dimension has the name of an axis that it followed in all runs, is fixed where it
    never changed and the file does not leave it free, and has a name of its own else.

    Args:
        signature: as the file, or the configuration, has it.
        lengths: the inputs' axes, as found.
        seen: runs of different sizes.
        given: outputs whose names the configuration gives: those are not doubted.
    """
    kept = {*given, *(s.name for s in signature.outputs if {*s.axes} & signature.lengths.keys())}
    outputs = tuple(
        spec if spec.name in kept else _fitted(spec, lengths, seen) for spec in signature.outputs
    )
    limits, least = dict(signature.axis_limits), dict(signature.axis_least)
    for old, new in zip(signature.inputs, lengths.inputs, strict=True):
        for before, after in zip(old.axes, new.axes, strict=True):
            if before in signature.axis_limits and after != before:
                limits[after] = min(limits.get(after, limits[before]), limits[before])
            if before in signature.axis_least and after != before:
                least[after] = max(least.get(after, 1), least[before])
    return replace(
        signature, inputs=lengths.inputs, outputs=outputs, axis_limits=limits, axis_least=least
    )


def _fitted(spec: TensorSpec, lengths: Lengths, seen: Sequence[ObservedRun]) -> TensorSpec:
    shapes = [run.shapes[spec.name] for run in seen if spec.name in run.shapes]
    ranks = {len(shape) for shape in shapes}
    if len(ranks) != 1:
        return spec
    rank = ranks.pop()
    columns = [[shape[at] for shape in shapes] for at in range(rank)]
    if rank != len(spec.dims):  # what never changed is fixed then, which takes two runs to see
        fixed = [sizes[0] if len(sizes) > 1 and len({*sizes}) == 1 else -1 for sizes in columns]
        spec = replace(spec, dims=tuple(fixed), axes=("",) * rank)
    dims, axes = list(spec.dims), list(spec.axes)
    for at, sizes in enumerate(columns):
        if dims[at] < 0 or {*sizes} != {dims[at]}:
            dims[at], axes[at] = -1, _followed(sizes, seen, first=lengths.batch, said=axes[at])
    return named(replace(spec, dims=tuple(dims), axes=tuple(axes)))


def _followed(sizes: Sequence[int], seen: Sequence[ObservedRun], *, first: str, said: str) -> str:
    """Return the axis that had these sizes, the one that the file names before others; else "".

    Where none had, a name that no input has is kept.
    """
    known = [
        name
        for name in seen[0].sizes
        if all(run.sizes[name] == size for run, size in zip(seen, sizes, strict=True))
    ]
    if known:
        return next((name for name in (said, first) if name in known), known[0])
    return "" if said in seen[0].sizes else said
