"""What a sequence adds to a graph: control inputs from the host, and states that stay with us.

Clients know neither. So before anything else looks at a graph, its states are taken out of the
signature, and the controls that it has are declared as inputs like any others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from ge_backend.errors import ConfigError
from ge_backend.model.config.model import ModelConfig, TensorConfig
from ge_backend.model.config.sequence_batching import Control, State
from ge_backend.model.layout.validate import tensor_named
from ge_backend.tensors import Signature, TensorSpec, agree

__all__ = ["hidden_outputs", "placed_states", "with_controls", "without_states"]


def with_controls(config: ModelConfig, signature: Signature) -> ModelConfig:
    """Return the configuration with those controls as inputs that the graph has.

    The others are dropped: the host sends them to every model that names them. A graph that does
    not say what inputs it has (TorchScript) gets all of them.
    """
    if config.sequence is None:
        return config
    controls = tuple(
        _declared(control)
        for control in config.sequence.controls
        if not signature.inputs or signature.input(control.name) is not None
    )
    return replace(config, inputs=config.inputs + controls)


def without_states(config: ModelConfig, signature: Signature) -> Signature:
    """Return the signature as clients see it.

    Where a file has none (TorchScript), what is declared counts.

    Raises:
        ConfigError: a declared state and the graph contradict each other; both are named.
    """
    if config.sequence is None or not config.sequence.states:
        return signature
    if config.learn == "serve":
        raise ConfigError(
            "learn: serve changes to another connection with every new set of buckets, and states "
            "stay with the old one; set the parameter 'learn' to record"
        )
    for state in placed_states(config, signature):
        if any(tensor.name == state.input for tensor in config.inputs):
            raise ConfigError(
                f"input {state.input!r} is a state of sequence_batching, too, which stays here and "
                "no client sends; remove it from 'input'"
            )
        if signature.inputs:
            _check(state, state.input, "inputs", signature.inputs, config)
        if signature.outputs:
            _check(state, state.output, "outputs", signature.outputs, config)
    taken = {state.input for state in config.sequence.states}
    hidden = hidden_outputs(config)
    return replace(
        signature,
        inputs=tuple(spec for spec in signature.inputs if spec.name not in taken),
        outputs=tuple(spec for spec in signature.outputs if spec.name not in hidden),
    )


def placed_states(config: ModelConfig, signature: Signature) -> tuple[State, ...]:
    """Return the states, with the place that the batch has among their dimensions in the graph.

    It is one that both ends leave open; of several the one that is called as the batch is in what
    clients send, else the first. A file that says nothing has it in front.
    """
    if config.sequence is None or not config.max_batch_size:
        return () if config.sequence is None else config.sequence.states
    sent = [spec for spec in signature.inputs if tensor_named(config.inputs, spec.name)]
    batch = {spec.axes[0] for spec in sent if spec.axes} - {""}
    return tuple(
        replace(state, axis=_batch_axis(state, signature, batch))
        for state in config.sequence.states
    )


def _batch_axis(state: State, signature: Signature, batch: Collection[str]) -> int:
    given, following = signature.input(state.input), signature.output(state.output)
    ends = [spec for spec in (given, following) if spec is not None]
    places = [
        at
        for at in range(len(state.dims) + 1)
        if all(agree(replace(state, axis=at).of_rows(-1, state.dims), spec.dims) for spec in ends)
        and all(spec.dims[at] < 0 for spec in ends)
    ]
    named = [at for at in places if any(spec.axes[at] in batch for spec in ends)]
    return next(iter((*named, *places)), 0)


def hidden_outputs(config: ModelConfig) -> tuple[str, ...]:
    """Return the outputs that are only states: those that `output` does not declare as well."""
    if config.sequence is None:
        return ()
    declared = {tensor.name for tensor in config.outputs}
    return tuple(s.output for s in config.sequence.states if s.output not in declared)


def _declared(control: Control) -> TensorConfig:
    return TensorConfig(
        name=control.name,
        dtype=control.dtype,
        dims=(1,),
        graph_dims=(1,),
        ragged=False,
        optional=False,
    )


def _check(
    state: State, name: str, side: str, specs: Sequence[TensorSpec], config: ModelConfig
) -> None:
    spec = next((spec for spec in specs if spec.name == name), None)
    if spec is None:
        raise ConfigError(
            f"sequence_batching declares the state {name!r}, which the graph does not have; its "
            f"{side} are {', '.join(spec.name for spec in specs)}"
        )
    batched = config.max_batch_size > 0
    whole = state.of_rows(-1, state.dims) if batched else state.dims
    if spec.dtype.name != state.dtype.name or not agree(whole, spec.dims):
        raise ConfigError(
            f"state {name!r} is declared as {state.dtype.name} {list(state.dims)}; the graph has "
            f"{spec.describe()}" + (", batch dimension included" if batched else "")
        )
