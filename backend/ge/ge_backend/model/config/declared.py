"""A model's tensors as config.pbtxt lists them, for files that do not say it themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ge_backend.model.config.model import ModelConfig, TensorConfig
from ge_backend.tensors import DataType, Shape, Signature, TensorSpec

__all__ = ["NOTHING_DECLARED", "Declared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a configuration lists, part by part and in its order; no axis has a name.

    Attributes:
        inputs: what clients send.
        described: the targets of `batch_input`.
        controls: the control inputs of sequences.
        states: the inputs that take the states of sequences.
        outputs: what clients get.
        next_states: the outputs that give these states' next values.
    """

    inputs: tuple[TensorSpec, ...] = ()
    described: tuple[TensorSpec, ...] = ()
    controls: tuple[TensorSpec, ...] = ()
    states: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    next_states: tuple[TensorSpec, ...] = ()

    @classmethod
    def of(cls, config: ModelConfig) -> Declared:
        """Return what a model's configuration lists, as its graph sees it.

        Inputs that are concatenated flat are `[-1]` there.
        """
        batch = (-1,) if config.max_batch_size else ()
        controls = config.sequence.controls if config.sequence is not None else ()
        states = config.sequence.states if config.sequence is not None else ()

        def dims(tensor: TensorConfig) -> Shape:
            return (-1,) if tensor.ragged and config.concatenate else batch + tensor.graph_dims

        return cls(
            inputs=tuple(_spec(t.name, t.dtype, dims(t)) for t in config.inputs),
            described=tuple(_described(config)),
            controls=tuple(_spec(c.name, c.dtype, (*batch, 1)) for c in controls),
            states=tuple(_spec(s.input, s.dtype, batch + s.dims) for s in states),
            outputs=tuple(_spec(t.name, t.dtype, batch + t.graph_dims) for t in config.outputs),
            next_states=tuple(_spec(s.output, s.dtype, batch + s.dims) for s in states),
        )

    def only(self, names: Collection[str]) -> Declared:
        """Return those of the inputs and outputs that have one of these names."""
        inputs, outputs = (
            tuple(spec for spec in specs if spec.name in names)
            for specs in (self.inputs, self.outputs)
        )
        return Declared(inputs=inputs, outputs=outputs)

    @property
    def signature(self) -> Signature:
        """All of it as a graph's signature; what is an output and a state is there once."""
        outputs = {spec.name: spec for spec in (*self.next_states, *self.outputs)}
        return Signature(
            inputs=(*self.inputs, *self.described, *self.controls, *self.states),
            outputs=tuple(outputs.values()),
            axis_limits={},
        )


# Of a file that says itself what its tensors are.
NOTHING_DECLARED = Declared()


def _described(config: ModelConfig) -> Iterator[TensorSpec]:
    for block in config.batch_inputs:
        rank = 2 if block.kind == "BATCH_ITEM_SHAPE" else 1
        for name in block.names:
            yield _spec(name, block.dtype, (-1,) * rank)


def _spec(name: str, dtype: DataType, dims: Shape) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, dims=dims, axes=("",) * len(dims))
