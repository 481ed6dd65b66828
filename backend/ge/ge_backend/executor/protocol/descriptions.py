"""What graphs and states look like, as values that travel in messages; each has its inverse."""

from __future__ import annotations

from dataclasses import dataclass

from ge_backend.config.sequence_batching import State
from ge_backend.tensors import DATA_TYPES, Shape, Signature, TensorSpec

__all__ = ["SignatureMessage", "SpecMessage", "StateMessage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecMessage:
    """A `TensorSpec` on the wire."""

    name: str
    dtype: str
    dims: Shape
    axes: tuple[str, ...]
    optional: bool
    fill: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureMessage:
    """A `Signature` on the wire."""

    inputs: tuple[SpecMessage, ...]
    outputs: tuple[SpecMessage, ...]
    axis_limits: dict[str, int]
    lengths: dict[str, str]

    @classmethod
    def of(cls, signature: Signature) -> SignatureMessage:
        """Return the message for a signature; `signature` is the inverse."""
        return cls(
            inputs=tuple(map(_spec_message, signature.inputs)),
            outputs=tuple(map(_spec_message, signature.outputs)),
            axis_limits=dict(signature.axis_limits),
            lengths=dict(signature.lengths),
        )

    def signature(self) -> Signature:
        """Return the signature that was sent."""
        return Signature(
            inputs=tuple(map(_spec, self.inputs)),
            outputs=tuple(map(_spec, self.outputs)),
            axis_limits=self.axis_limits,
            lengths=self.lengths,
        )


def _spec_message(spec: TensorSpec) -> SpecMessage:
    return SpecMessage(
        name=spec.name,
        dtype=spec.dtype.name,
        dims=spec.dims,
        axes=spec.axes,
        optional=spec.optional,
        fill=spec.fill,
    )


def _spec(message: SpecMessage) -> TensorSpec:
    return TensorSpec(
        name=message.name,
        dtype=DATA_TYPES[message.dtype],
        dims=message.dims,
        axes=message.axes,
        optional=message.optional,
        fill=message.fill,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMessage:
    """A `State` on the wire."""

    input: str
    output: str
    dtype: str
    dims: Shape
    initial_dims: Shape
    initial_file: str

    @classmethod
    def of(cls, state: State) -> StateMessage:
        """Return the message for a state; `state` is the inverse."""
        return cls(
            input=state.input,
            output=state.output,
            dtype=state.dtype.name,
            dims=state.dims,
            initial_dims=state.initial_dims,
            initial_file=state.initial_file,
        )

    def state(self) -> State:
        """Return the state that was sent."""
        return State(
            input=self.input,
            output=self.output,
            dtype=DATA_TYPES[self.dtype],
            dims=self.dims,
            initial_dims=self.initial_dims,
            initial_file=self.initial_file,
        )
