"""TorchScript files, which know the order of their tensors but neither their types nor shapes.

They are told by config.pbtxt (`Declared`), by the names that Triton's PyTorch backend understands
(`script_names.py`); or by an extra file of ours in the `.pt` itself, ge_signature.json, the format
of `files/signature_file.py`, in the order of `forward`:

    torch.jit.save(module, path, _extra_files={"ge_signature.json": json.dumps(signature)})

With neither, inputs are the arguments of `forward` or `INPUT__0` and so on, and outputs `OUTPUT__0`
and so on. A program may take one dictionary of tensors, and return a tensor, a tuple or list of
them, or a dictionary, whose keys are the outputs' names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ge_backend.engines.torch.script_names import input_places, output_places
from ge_backend.errors import ConfigError, GraphFailed
from ge_backend.model.config.declared import Declared
from ge_backend.model.files.signature_file import read_signature
from ge_backend.tensors import Signature

__all__ = ["Script"]

Tensors = Mapping[str, torch.Tensor]

SIGNATURE_FILE = "ge_signature.json"
TENSORS = ("Tensor", "Optional[Tensor]")


class Script:
    """One loaded TorchScript module on a device of torch's, called with tensors by name.

    `declared` is what config.pbtxt lists, nothing where it lists none.

    Attributes:
        module: the module itself.
        signature: what the file states, else what is declared; inputs of clients that `forward`
            has a value of its own for are optional.
        declared: it is what is declared.

    Raises:
        ConfigError: what is declared and `forward` contradict each other.
        ModelError: the file states a signature that is none.
    """

    def __init__(self, path: str, device: str, declared: Declared) -> None:
        extra: dict[str, Any] = {SIGNATURE_FILE: ""}
        self.module = torch.jit.load(path, map_location=device, _extra_files=extra)
        self.module.eval()
        schema = self.module.forward.schema
        arguments, returned = schema.arguments[1:], schema.returns[0].type
        names = [argument.name for argument in arguments]
        self.signature = declared.signature
        self.declared = not extra[SIGNATURE_FILE]
        self._given: Callable[[Tensors], Sequence[Any]] = partial(_by_name_or_index, names, path)
        self._named: Callable[[Any], Mapping[str, torch.Tensor]] = _by_place
        if extra[SIGNATURE_FILE]:
            stated = json.loads(extra[SIGNATURE_FILE])
            self.signature = read_signature(stated, f"{path}: {SIGNATURE_FILE}")
            self._given = partial(_in_order, [spec.name for spec in self.signature.inputs])
            self._named = partial(_as_stated, [spec.name for spec in self.signature.outputs], path)
        elif self.signature.inputs:
            _refuse_texts(self.signature, path)
            self._given, spared = _filling(arguments, declared, path)
            inputs = [replace(s, optional=s.name in spared) for s in self.signature.inputs]
            self.signature = replace(self.signature, inputs=tuple(inputs))
            self._named = _choosing(returned, declared, path)

    def __call__(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Run once and return the outputs by name."""
        named = self._named(self.module(*self._given(tensors)))
        return {name: torch.as_tensor(result) for name, result in named.items()}  # some are numbers


def _filling(
    arguments: Sequence[Any], declared: Declared, path: str
) -> tuple[Callable[[Tensors], Sequence[Any]], Collection[str]]:
    """Return what makes the arguments of `forward` of the declared inputs, and who may be missing.

    Source of the rules and messages: src/libtorch.cc of pytorch_backend r24.10, `ValidateInputs`.
    Further than there, a tensor may be optional, and arguments with a value of their own, or of
    type Optional, left out.
    """
    if [argument.type.kind() for argument in arguments] == ["DictType"]:
        return (lambda tensors: [dict(tensors)]), ()
    names = [argument.name for argument in arguments]
    count = len(declared.signature.inputs)
    least = sum(not _spared(argument) for argument in arguments)
    if not least <= count <= len(arguments):
        raise ConfigError(
            f"{path}: configuration expects {count} inputs, model provides {len(arguments)}: "
            f"{', '.join(names)}; declare each of them"
        )
    places = input_places(declared, names, path)
    for place, argument in enumerate(arguments):
        if place in places.values() and str(argument.type) not in TENSORS:
            raise ConfigError(
                f"{path}: an input of type {str(argument.type)!r} was detected in the model, "
                f"{argument.name!r}. Only a single input of type Dict(str, Tensor) or input(s) of "
                "type Tensor are supported"
            )
        if not (place in places.values() or _spared(argument)):
            raise ConfigError(
                f"{path}: forward's argument {argument.name!r}, number {place} from 0 on, is none "
                f"of the inputs {', '.join(places)}; declare it"
            )
    defaults = [argument.default_value for argument in arguments]

    def filled(tensors: Tensors) -> Sequence[Any]:
        values = list(defaults)
        for name, place in places.items():
            values[place] = tensors.get(name, defaults[place])
        return values

    listed = [spec.name for spec in declared.inputs]
    return filled, [name for name in listed if _spared(arguments[places[name]])]


def _spared(argument: Any) -> bool:
    """Whether `forward` runs without a tensor for it: it has a value of its own, or may be None."""
    return bool(argument.has_default_value()) or str(argument.type) == TENSORS[1]


def _choosing(
    returned: Any, declared: Declared, path: str
) -> Callable[[Any], Mapping[str, torch.Tensor]]:
    """Return what picks the declared outputs from a result.

    Source of the message: src/libtorch.cc of pytorch_backend r24.10, `ProcessRequests`; it comes at
    load where the file says how many results there are.
    """
    if returned.kind() == "DictType":
        return partial(_by_key, [spec.name for spec in declared.outputs], path)
    places = output_places(declared, path)
    parts = returned.elements() if returned.kind() == "TupleType" else [returned]
    if all(part.kind() == "TensorType" for part in parts):
        _check_results(places, len(parts), path)

    def chosen(result: Any) -> Mapping[str, torch.Tensor]:
        leaves = pytree.tree_leaves(result)
        _check_results(places, len(leaves), path)
        return {name: leaves[place] for name, place in places.items()}

    return chosen


def _check_results(places: Mapping[str, int], count: int, path: str) -> None:
    for name, place in places.items():
        if place >= count:
            raise ConfigError(
                f"{path}: the output {name} in the model configuration refers to an output index "
                f"which doesn't exist. This model has {count} outputs, counted from 0"
            )


def _refuse_texts(signature: Signature, path: str) -> None:
    for what, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            if spec.dtype.name == "BYTES":
                raise ConfigError(
                    f"{path}: unsupported datatype TYPE_STRING for {what} {spec.name!r}: torch has "
                    "no tensors of texts; read texts by a tokenizer.json or an ONNX file, and put "
                    "TorchScript behind it in an ensemble"
                )


def _in_order(names: Sequence[str], tensors: Tensors) -> Sequence[torch.Tensor]:
    return [tensors[name] for name in names]


def _by_name_or_index(names: Sequence[str], path: str, tensors: Tensors) -> Sequence[torch.Tensor]:
    """Return the tensors in the order of `forward`'s arguments: by their names, or by `...__1`."""
    places: dict[int, torch.Tensor] = {}
    for name, tensor in tensors.items():
        position = re.search(r"__(\d+)$", name)
        if name in names:
            places[names.index(name)] = tensor
        elif position:
            places[int(position[1])] = tensor
    if sorted(places) != list(range(len(tensors))):
        raise GraphFailed(
            f"{path} takes the inputs {', '.join(names)}, or INPUT__0 and so on; "
            f"got {', '.join(tensors)}"
        )
    return [places[index] for index in range(len(tensors))]


def _by_place(result: Any) -> Mapping[str, torch.Tensor]:
    if isinstance(result, dict):
        return result
    return {f"OUTPUT__{at}": leaf for at, leaf in enumerate(pytree.tree_leaves(result))}


def _as_stated(names: Sequence[str], path: str, result: Any) -> Mapping[str, torch.Tensor]:
    if isinstance(result, dict):
        return result
    leaves = pytree.tree_leaves(result)
    if len(names) != len(leaves):
        raise GraphFailed(f"{path} returned {len(leaves)} tensors; its outputs are {names}")
    return dict(zip(names, leaves, strict=True))


def _by_key(names: Sequence[str], path: str, result: Mapping[Any, Any]) -> Tensors:
    missing = [name for name in names if name not in result]
    if missing:
        raise ConfigError(
            f"{path} returns a dictionary of {', '.join(map(str, result))}, without the declared "
            f"output {missing[0]!r}"
        )
    return {name: result[name] for name in names}
