"""Whether a program can be captured, found out by running it once and watching its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["CaptureCheck"]

_aten = torch.ops.aten

# torch marks the operators whose result the host needs to see.
WAITING = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
# These only wait where an index is a mask.
INDEXING = frozenset(
    {
        _aten.index.Tensor,
        _aten.index_put.default,
        _aten.index_put_.default,
        _aten._index_put_impl_.default,
    }
)
MASKS = (torch.bool, torch.uint8)
COPY = _aten._to_copy.default  # noqa: SLF001 - what every `to` of another device becomes


class CaptureCheck(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Notes the operators, of those that run while it is active, that a capture would refuse.

    A capture that fails leaves the device's allocator in a state from which it is hard to recover
    (`Vendor.capture`), so it is not begun where it is known to fail. It would fail where the
    host waits for the device: for the value or the shape of a result, or for a copy between them.

    To be used outside inference mode, in which operators made of others hide their parts.

    Attributes:
        obstacles: what was found, in words.
    """

    def __init__(self) -> None:
        super().__init__()
        self.obstacles: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operator."""
        del types
        result = func(*args, **(kwargs or {}))
        if _waits(func, args):
            self.obstacles.append(f"{func} needs the device's result on the host")
        elif _moves(func, args, result):
            self.obstacles.append(f"{func} moves data between host and device")
        return result


def _waits(func: Any, args: tuple[Any, ...]) -> bool:
    if func in INDEXING:
        return any(index is not None and index.dtype in MASKS for index in args[1])
    return not WAITING.isdisjoint(func.tags)


def _moves(func: Any, args: tuple[Any, ...], result: Any) -> bool:
    """Whether tensors of several devices take part.

    A single number on the host beside tensors on the device is no matter: it is passed by value.
    Nor is what else is made on the host: CUDA's fused attention returns the state of random numbers
    there, unless it is captured. Source: pytorch 2.11, transformers/cuda/attention.cu.
    """
    given = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    tensors = [tensor for tensor in given if tensor.dim()] or given
    if func is COPY:
        tensors.append(result)
    return len({tensor.device for tensor in tensors}) > 1
