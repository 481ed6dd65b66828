"""In which order a gear of an offline model lists the dimensions of its inputs.

A gear made by `--dynamic_dims` is one list of dims, of all inputs one behind the other. They stand
in the order in which `--input_shape` named the inputs, which need not be the model's own, and which
the file does not tell. Its fixed dimensions do, mostly.
Source: hicann/ge compiler/graph/passes/multi_batch/multi_batch_clone_pass.cc, api/acl/acl_model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ge_backend.errors import ModelError
from ge_backend.tensors import Shape, agree

__all__ = ["cut_gears", "gear_order"]


def gear_order(
    inputs: Mapping[str, Shape], gears: Sequence[Shape], stated: Sequence[str], path: str
) -> tuple[str, ...]:
    """Return the names of the inputs in the order in which gears list them.

    Args:
        inputs: dims by name, -1 where they vary, in the model's order.
        gears: each with the dims of all inputs.
        stated: the order, as the file beside the model says it; empty where it does not.
        path: the model's, in messages.

    Raises:
        ModelError: no order fits, or several do that lead to different shapes, or the stated one
            does not fit.
    """
    if stated:
        return _checked(inputs, gears, stated, path)
    found = None
    for order in _fitting(dict(inputs), gears, 0):
        if found is None:
            found = order
        differs = cut_gears(inputs, gears, order) != cut_gears(inputs, gears, found)
        if differs or _swaps(inputs, gears, order):
            names = ", ".join(f'"{name}"' for name in inputs)
            raise ModelError(
                f"{path}: its gears fit its inputs in several orders; say in which they stood "
                f'in --input_shape when it was compiled, in model.om.json: {{"order": [{names}]}}'
            )
    if found is None:
        raise ModelError(f"{path}: its gears do not fit its inputs {dict(inputs)}: {list(gears)}")
    return found


def cut_gears(
    inputs: Mapping[str, Shape], gears: Sequence[Shape], order: Sequence[str]
) -> dict[str, list[Shape]]:
    """Return the shapes of each input, one per gear, if gears list the inputs in this order."""
    shapes, at = {}, 0
    for name in order:
        end = at + len(inputs[name])
        shapes[name] = [gear[at:end] for gear in gears]
        at = end
    return shapes


def _checked(
    inputs: Mapping[str, Shape], gears: Sequence[Shape], stated: Sequence[str], path: str
) -> tuple[str, ...]:
    if sorted(stated) != sorted(inputs):
        raise ModelError(
            f"model.om.json beside {path} has the order {', '.join(stated)}; the model's inputs "
            f"are {', '.join(inputs)}"
        )
    for name, columns in cut_gears(inputs, gears, stated).items():
        if not all(agree(inputs[name], shape) for shape in columns):
            raise ModelError(
                f"{path}: in the order {', '.join(stated)} its gears do not fit: {name!r} is "
                f"{list(inputs[name])}, and would be {columns}"
            )
    return tuple(stated)


def _fitting(
    left: Mapping[str, Shape], gears: Sequence[Shape], at: int
) -> Iterator[tuple[str, ...]]:
    """Give the orders that fit from a position on; of inputs with equal dims, one order."""
    if not left:
        yield ()
        return
    firsts: dict[Shape, str] = {}
    for name, dims in left.items():
        firsts.setdefault(dims, name)
    for dims, name in firsts.items():
        end = at + len(dims)
        if all(agree(dims, gear[at:end]) for gear in gears):
            others = {other: shape for other, shape in left.items() if other != name}
            for rest in _fitting(others, gears, end):
                yield (name, *rest)


def _swaps(inputs: Mapping[str, Shape], gears: Sequence[Shape], order: Sequence[str]) -> bool:
    """Whether two inputs with equal dims could change places, and would get other shapes."""
    shapes = cut_gears(inputs, gears, order)
    alike: dict[Shape, list[Shape]] = {}
    return any(
        alike.setdefault(inputs[name], columns) != columns for name, columns in shapes.items()
    )
