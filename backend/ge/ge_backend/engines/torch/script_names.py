"""Which argument of `forward` a declared tensor is, and which of its results: Triton's rules.

The inputs of config.pbtxt are, all together, the first of these that holds:

1. arguments of `forward`, by their names;
2. `<name>__<index>`: the arguments by their places, from 0 on, in any order;
3. anything else: the arguments in the order in which config.pbtxt lists them.

Outputs follow 2 or 3: results have places only. What comes with sequences and `batch_input` has an
argument's name or an index; targets of `batch_input` follow the inputs under rule 3.
Source: triton-inference-server/pytorch_backend r24.10, src/libtorch.cc: `GetNamingConvention`,
`ValidateInputs`, `ValidateOutputs`, and the controls' `Validate…SequenceControl`. There states and
controls are named by index only; here an argument's name does as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from ge_backend.errors import ConfigError
from ge_backend.model.config.declared import Declared
from ge_backend.tensors import TensorSpec

__all__ = ["input_places", "output_places"]


def input_places(declared: Declared, arguments: Sequence[str], path: str) -> dict[str, int]:
    """Return for each declared input the place of its argument among those of `forward`.

    Raises:
        ConfigError: a name follows no rule, or two tensors are one argument.
    """
    listed = [spec.name for spec in declared.inputs]
    by_name = all(name in arguments for name in listed)
    ordered = not by_name and not all(_has_index(name) for name in listed)
    if ordered:
        _refuse_states(declared, "inputs", path)
        listed += [spec.name for spec in declared.described]
        places = {name: place for place, name in enumerate(listed)}
    else:
        places = {name: arguments.index(name) if by_name else _index(name) for name in listed}
    rest = (*declared.controls, *declared.states) + (() if ordered else declared.described)
    for spec in rest:
        known = spec.name in arguments
        places[spec.name] = (
            arguments.index(spec.name) if known else _required_index("input", spec, path)
        )
    _check_arguments(places, arguments, path)
    return places


def output_places(declared: Declared, path: str) -> dict[str, int]:
    """Return for each declared output the place of its result.

    Raises:
        ConfigError: the output of a state has no index.
    """
    listed = [spec.name for spec in declared.outputs]
    if all(_has_index(name) for name in listed):
        places = {name: _index(name) for name in listed}
    else:
        _refuse_states(declared, "outputs", path)
        places = {name: place for place, name in enumerate(listed)}
    states = {spec.name: _required_index("output", spec, path) for spec in declared.next_states}
    return places | states


def _has_index(name: str) -> bool:
    return name.partition("__")[2].isdecimal()


def _index(name: str) -> int:
    return int(name.partition("__")[2])


def _required_index(what: str, spec: TensorSpec, path: str) -> int:
    if not _has_index(spec.name):
        raise ConfigError(
            f"{path}: {what} {spec.name!r} does not follow the <name>__<index> naming convention; "
            "what sequence_batching and batch_input name needs it to say which argument or result "
            "of forward it is"
        )
    return _index(spec.name)


def _refuse_states(declared: Declared, what: str, path: str) -> None:
    if declared.states:
        raise ConfigError(
            f"{path} is used with sequence batching with state but not all inputs and outputs "
            f"follow the <name>__<index> naming convention; name the {what} so"
        )


def _check_arguments(places: dict[str, int], arguments: Sequence[str], path: str) -> None:
    owners: dict[int, str] = {}
    for name, place in places.items():
        if place >= len(arguments):
            raise ConfigError(
                f"{path}: input {name!r} refers to argument {place}, counted from 0; forward takes "
                f"{len(arguments)}: {', '.join(arguments)}"
            )
        other = owners.setdefault(place, name)
        if other != name:
            raise ConfigError(
                f"{path}: inputs {other!r} and {name!r} are both the argument {arguments[place]!r} "
                "of forward; give each its own index"
            )
