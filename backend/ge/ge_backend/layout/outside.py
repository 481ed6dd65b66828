"""How a fused ensemble looks to clients: what is declared, and nothing that its steps do inside."""

from __future__ import annotations

from typing import TypedDict

from ge_backend.config.model import ModelConfig, TensorConfig
from ge_backend.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.tensors import DataType, Shape

__all__ = ["outside_layout"]


def outside_layout(config: ModelConfig) -> Layout:
    """Return the layout of a model that has steps in place of a graph.

    Nothing is padded here, and free dims need not agree: each step's own layout says what of its
    inputs is. Nor is an input made here, whatever it is called: an optional one that was not sent
    is left out, and the steps that take it make it, or run without.
    """
    return Layout(
        batched=config.max_batch_size > 0,
        axes=(),
        limits={},
        inputs=tuple(
            InputLayout(**_tensor(item), fill=0.0, made="", optional=item.optional)
            for item in config.inputs
        ),
        outputs=tuple(OutputLayout(**_tensor(item)) for item in config.outputs),
    )


class _Tensor(TypedDict):
    name: str
    dtype: DataType
    dims: Shape
    axes: tuple[int, ...]
    names: tuple[str, ...]


def _tensor(item: TensorConfig) -> _Tensor:
    dims = item.graph_dims
    return _Tensor(
        name=item.name,
        dtype=item.dtype,
        dims=dims,
        axes=(-1,) * len(dims),
        names=tuple(f"{item.name}.{index}" for index in range(len(dims))),
    )
