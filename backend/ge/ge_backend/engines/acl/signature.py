"""From the shapes that an offline model runs to a signature: which dimensions are free, and equal.

An `.om` names no dimensions. What differs between the shapes is free, up to the largest; what is
the same in all of them is fixed. Dimensions that are equal in every shape are one axis. An axis is
called as the file beside the model says, else `batch` where it is every input's first dimension,
else after the first input that has it: `input_ids.1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ge_backend.engines.acl.description import UNKNOWN_RANK, Tensor
from ge_backend.errors import ModelError
from ge_backend.tensors import Shape, Signature, TensorSpec

__all__ = ["Shapes", "free_signature", "ranked", "signature_of"]

Shapes = Mapping[str, Shape]
Names = Mapping[str, tuple[str, ...]]
BATCH = "batch"


@dataclass(frozen=True, slots=True)
class _Axis:
    """Sizes of a dimension, one per shape.

    Attributes:
        first: whether it is a first dimension: rows and lengths that happen to be equal are not
            one axis.
    """

    first: bool
    sizes: tuple[int, ...]


def signature_of(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    runs: Sequence[tuple[Shapes, Shapes]],
    names: Names,
    labels: Sequence[Shape] = (),
) -> Signature:
    """Return the signature of a model with a list of shapes; tensors are in the model's order.

    `runs` has the input and the output shapes of each, `names` the dimensions' by tensor. `labels`
    are of the files that the runs are from, in the same order, if these have any: the sizes that
    they say are free even where they are all the same.

    Raises:
        ModelError: a label does not say what its file is, or names are for another rank.
    """
    given = [shapes for shapes, _ in runs]
    taken = {tensor.name: _columns(tensor.name, given) for tensor in inputs}
    free = {axis for axes in taken.values() for axis in axes if len(set(axis.sizes)) > 1}
    if labels:
        free = _labelled(taken, free, labels)
    called = _called(taken, free, names)
    results = [shapes for _, shapes in runs]
    return Signature(
        inputs=tuple(_input(tensor, taken[tensor.name], called, names) for tensor in inputs),
        outputs=tuple(
            _output(tensor, _columns(tensor.name, results), called, names) for tensor in outputs
        ),
        axis_limits=_limits(taken, called, names),
    )


def free_signature(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], names: Names, limits: Shapes
) -> Signature:
    """Return the signature of a model whose dimensions vary freely.

    Dimensions without a name are not known to equal any other. `limits` are as in `Description`.

    Raises:
        ModelError: names are for another rank.
    """
    specs = [_named(t, t.dims, ("",) * len(t.dims), names) for t in inputs]
    axis_limits: dict[str, int] = {}
    for spec in specs:
        for axis, most in zip(spec.axes, limits[spec.name], strict=False):
            if axis and most > 0:
                axis_limits[axis] = min(most, axis_limits.get(axis, most))
    return Signature(
        inputs=tuple(specs),
        outputs=tuple(_named(t, t.dims, ("",) * len(t.dims), names) for t in outputs),
        axis_limits=axis_limits,
    )


def ranked(
    tensors: Sequence[Tensor], names: Names, path: str, axes_path: str
) -> tuple[Tensor, ...]:
    """Return the tensors with as many free dimensions as are named, where ACL does not know them.

    The model's dimensions vary freely; `axes_path` is where names would be given, in messages.

    Raises:
        ModelError: neither ACL nor a name says how many a tensor has.
    """
    for tensor in tensors:
        if tensor.dims == UNKNOWN_RANK and tensor.name not in names:
            raise ModelError(
                f"{path}: {tensor.name!r} may have any number of dimensions; name those that it "
                f'has in {axes_path}: {{"axes": {{"{tensor.name}": ["batch", …]}}}}'
            )
    return tuple(
        replace(t, dims=(-1,) * len(names[t.name])) if t.dims == UNKNOWN_RANK else t
        for t in tensors
    )


def _columns(name: str, shapes: Sequence[Shapes]) -> list[_Axis]:
    """Return a tensor's dimensions, each with its sizes in all shapes."""
    return [
        _Axis(at == 0, sizes)
        for at, sizes in enumerate(zip(*(shape[name] for shape in shapes), strict=True))
    ]


def _labelled(
    taken: Mapping[str, Sequence[_Axis]], varying: set[_Axis], labels: Sequence[Shape]
) -> set[_Axis]:
    """Return the axes that labels name; they must name every one that varies."""
    said = {_Axis(at == 0, sizes) for at, sizes in enumerate(zip(*labels, strict=True))}
    have = {axis for axes in taken.values() for axis in axes}
    for axis in sorted(varying - said, key=lambda axis: axis.sizes):
        name, at = next((name, axes.index(axis)) for name, axes in taken.items() if axis in axes)
        raise ModelError(
            f"dimension {at} of input {name!r} is {_listed(axis)} in the files "
            f"{_shown(labels)}; their names must say it: rows, then one size per axis that differs"
        )
    for axis in sorted(said - have, key=lambda axis: axis.sizes):
        what = "a first dimension of an input" if axis.first else "a dimension behind the first"
        raise ModelError(
            f"the names of the files {_shown(labels)} say {_listed(axis)}, which is not {what} in "
            f"them; rename them after what they are: {_inputs(taken)}"
        )
    return said


def _called(
    taken: Mapping[str, Sequence[_Axis]], free: set[_Axis], names: Names
) -> dict[_Axis, str]:
    called: dict[_Axis, str] = {}
    rows = {axis for axes in taken.values() for axis in axes[:1] if axis in free}
    for name, axes in taken.items():
        own = names.get(name, ())
        for at, axis in enumerate(axes):
            if axis in free and at < len(own):
                called.setdefault(axis, own[at])
    for name, axes in taken.items():
        for at, axis in enumerate(axes):
            if axis in free:
                called.setdefault(axis, BATCH if at == 0 and len(rows) == 1 else f"{name}.{at}")
    return called


def _limits(
    taken: Mapping[str, Sequence[_Axis]], called: Mapping[_Axis, str], names: Names
) -> dict[str, int]:
    """Return the largest size of each axis; what has one name must have one size."""
    limits: dict[str, _Axis] = {}
    for tensor, axes in taken.items():
        for at, axis in enumerate(axes):
            if axis not in called:
                continue
            name = names[tensor][at] if tensor in names else called[axis]
            other = limits.setdefault(name, axis)
            if other.sizes != axis.sizes:
                raise ModelError(
                    f"dimension {at} of input {tensor!r} is named {name!r} and has the sizes "
                    f"{_listed(axis)}; another one of that name has {_listed(other)}"
                )
    return {name: max(axis.sizes) for name, axis in limits.items()}


def _input(
    tensor: Tensor, axes: Sequence[_Axis], called: Mapping[_Axis, str], names: Names
) -> TensorSpec:
    dims = tuple(-1 if axis in called else axis.sizes[0] for axis in axes)
    return _named(tensor, dims, tuple(called.get(axis, "") for axis in axes), names)


def _output(
    tensor: Tensor, axes: Sequence[_Axis], called: Mapping[_Axis, str], names: Names
) -> TensorSpec:
    """Return an output's spec; a free dimension is the input's axis that it always equals.

    Behind the first one a dimension that never differs is fixed, even where an axis happens to have
    that one size: cutting it would lose data.
    """
    free = [len(set(axis.sizes)) > 1 or (axis.first and axis in called) for axis in axes]
    found = [called.get(axis) or called.get(_Axis(not axis.first, axis.sizes), "") for axis in axes]
    return _named(
        tensor,
        tuple(-1 if is_free else axis.sizes[0] for axis, is_free in zip(axes, free, strict=True)),
        tuple(name if is_free else "" for name, is_free in zip(found, free, strict=True)),
        names,
    )


def _named(tensor: Tensor, dims: Shape, found: tuple[str, ...], names: Names) -> TensorSpec:
    own = names.get(tensor.name, found)
    if len(own) != len(dims):
        raise ModelError(
            f"{tensor.name!r} has {len(dims)} dimensions {list(dims)}, and {len(own)} names: "
            f"{', '.join(own)}"
        )
    return TensorSpec(name=tensor.name, dtype=tensor.dtype, dims=dims, axes=own)


def _listed(axis: _Axis) -> str:
    return ", ".join(map(str, axis.sizes))


def _shown(labels: Sequence[Shape]) -> str:
    return ", ".join("x".join(map(str, label)) for label in labels)


def _inputs(taken: Mapping[str, Sequence[_Axis]]) -> str:
    return "; ".join(
        f"{name} [{' x '.join(_listed(axis) for axis in axes)}]" for name, axes in taken.items()
    )
