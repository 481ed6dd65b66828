"""Model files of torch, read into one form: a module, its signature, and how to call it by names.

`torch.export` keeps the names of inputs only. The format carries extra files, and this one is ours;
every key is optional, and a free dimension is named by its symbol:

    names = {"inputs": ["input_ids"], "outputs": ["embedding"], "axes": {"s77": "sequence"}}
    torch.export.save(program, path, extra_files={"ge_names.json": json.dumps(names)})

Without it outputs are named by the keys of the dictionary that `forward` returns, `output` if it
returns one tensor, else `output_0` and so on. TorchScript (`.pt`) is in `script.py`.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch.export.load's, which two threads that load at once import by halves
from torch.utils import _pytree as pytree

from ge_backend.device.failures import reason
from ge_backend.device.imports import importing
from ge_backend.device.machine.host_memory import host_memory
from ge_backend.engines.torch.script import Script
from ge_backend.errors import ModelError
from ge_backend.model.config.declared import NOTHING_DECLARED, Declared
from ge_backend.model.files.archive import check_archive
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec

__all__ = ["Program", "load_a_program", "load_program"]

Tensors = Mapping[str, torch.Tensor]

NAMES_FILE = "ge_names.json"

# A bound at least this large is torch's way of saying "none".
UNBOUNDED = 2**62
# Up to this torch.export writes a lower bound that it does not hold anyone to: it takes a dimension
# of 0 or 1 for one that never changes, and so gives others at least 2 (tested on 2.13).
UNCHECKED = 2

LOAD_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ImportError,
    OSError,
    AssertionError,
    zipfile.BadZipFile,
    pickle.UnpicklingError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A loaded module, called with tensors by name.

    Attributes:
        signature: empty for a TorchScript file that has no declared one.
        writes_in_place: some operation does, so inputs must be copies.
        declared: the signature is config.pbtxt's word, which the types of results have to bear out.
    """

    module: Any
    signature: Signature
    call: Callable[[Tensors], dict[str, torch.Tensor]]
    writes_in_place: bool
    declared: bool = False

    def lower(self, dtype: torch.dtype) -> None:
        """Convert the weights to a smaller type, and drop the checks that types are as exported.

        Buffers stay: BF16 cannot tell a table's places apart from 256 on. Batch norm alone wants
        its statistics in the type of its weights. `torch.export` writes such a check before every
        conversion, and it would fail.
        """
        for module in self.module.modules():
            weights = list(module.parameters(recurse=False))
            if hasattr(module, "running_var"):
                weights += module.buffers(recurse=False)
            for weight in weights:
                if weight.is_floating_point():
                    weight.data = weight.data.to(dtype)
            if isinstance(module, torch.fx.GraphModule):
                for node in list(module.graph.nodes):
                    if node.target is torch.ops.aten._assert_tensor_metadata.default:  # noqa: SLF001 - its name
                        module.graph.erase_node(node)
                module.recompile()


def load_program(path: str, device: str = "cpu", declared: Declared = NOTHING_DECLARED) -> Program:
    """Return the program of a `.pt2` or `.pt` file, its weights on a device of torch's.

    `declared` is what config.pbtxt lists, for a `.pt`, which says too little itself.

    Raises:
        ModelError: the file is corrupt, or its signature is none that can be served.
        OutOfMemory: it unpacks to more than the machine has.
        ConfigError: what is declared and the program contradict each other.
    """
    check_archive(Path(path), host_memory().free_bytes)
    try:
        if Path(path).suffix == ".pt2":
            return _exported(path, device)
        return _scripted(path, device, declared)
    except LOAD_ERRORS as error:
        raise ModelError(f"{path}: torch cannot load it: {reason(error)}") from error


def load_a_program() -> None:
    """Export, save and load one of no size: what these import on first use is imported then."""
    file = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Identity(), (torch.zeros(1),)), file)
    file.seek(0)
    torch.export.load(file).module()


def _exported(path: str, device: str) -> Program:
    extra = {NAMES_FILE: ""}
    with Path(path).open("rb") as file:
        program = torch.export.load(file, extra_files=extra)
    if device != "cpu":
        with importing():
            from torch.export.passes import move_to_device_pass  # since torch 2.7

        # The exporter writes the device into every operator that makes a tensor (arange, zeros).
        program = move_to_device_pass(program, device)
    names = json.loads(extra[NAMES_FILE] or "{}")
    module = program.module()
    signature, inputs, outputs = _Reader(program, names, path).read()
    in_spec = program.call_spec.in_spec

    def call(tensors: Tensors) -> dict[str, torch.Tensor]:
        flat = [tensors[item] if named else item for named, item in inputs]
        args, kwargs = pytree.tree_unflatten(flat, in_spec)
        leaves = pytree.tree_leaves(module(*args, **kwargs))
        return {name: leaves[index] for index, name in outputs}

    return Program(
        module=module, signature=signature, call=call, writes_in_place=_writes(program.graph)
    )


def _writes(graph: Any) -> bool:
    schemas = (getattr(node.target, "_schema", None) for node in graph.nodes)
    return any(schema is not None and schema.is_mutable for schema in schemas)


class _Reader:
    """Reads the signature of an exported program."""

    def __init__(self, program: Any, names: Mapping[str, Any], path: str) -> None:
        self._program = program
        self._names = names
        self._axes: Mapping[str, str] = names.get("axes", {})
        self._path = path
        self._values = {
            node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta
        }

    def read(self) -> tuple[Signature, list[tuple[bool, Any]], list[tuple[int, str]]]:
        """Return the signature, how to fill the flat inputs, and where the outputs are.

        An input is (True, name of a tensor) or (False, the constant it was exported with). Outputs
        that are not tensors are left out.
        """
        signature = self._program.graph_signature
        given = [s.arg for s in signature.input_specs if s.kind.name == "USER_INPUT"]
        taken = [s.arg for s in signature.output_specs if s.kind.name == "USER_OUTPUT"]
        tensors = [arg for arg in given if self._is_tensor(arg)]
        names = self._chosen("inputs", [arg.name for arg in tensors])
        specs = tuple(self._spec(arg, name) for arg, name in zip(tensors, names, strict=True))
        by_arg = {arg.name: spec.name for arg, spec in zip(tensors, specs, strict=True)}
        inputs = [
            (True, by_arg[arg.name]) if self._is_tensor(arg) else (False, self._constant(arg))
            for arg in given
        ]
        found = [(index, arg) for index, arg in enumerate(taken) if self._is_tensor(arg)]
        defaults = self._output_names(len(taken))
        chosen = self._chosen("outputs", [defaults[index] for index, _ in found])
        outputs = tuple(self._spec(arg, name) for (_, arg), name in zip(found, chosen, strict=True))
        places = [(index, name) for (index, _), name in zip(found, chosen, strict=True)]
        whole = Signature(
            inputs=specs,
            outputs=outputs,
            axis_limits=self._bounds("upper", lambda bound: bound < UNBOUNDED),
            axis_least=self._bounds("lower", lambda bound: bound > UNCHECKED),
        )
        return whole, inputs, places

    def _is_tensor(self, arg: Any) -> bool:
        return isinstance(self._values.get(arg.name), torch.Tensor)

    def _constant(self, arg: Any) -> Any:
        if not hasattr(arg, "value"):
            raise ModelError(
                f"{self._path}: input {arg.name!r} is a number that changes, and Triton sends "
                "tensors; export the program with a tensor in its place"
            )
        return arg.value

    def _chosen(self, what: str, defaults: Sequence[str]) -> Sequence[str]:
        names: Sequence[str] = self._names.get(what, defaults)
        if len(names) != len(defaults):
            raise ModelError(
                f"{self._path}: {NAMES_FILE} names {len(names)} {what}, the program has "
                f"{len(defaults)}: {', '.join(defaults)}"
            )
        return names

    def _output_names(self, count: int) -> list[str]:
        spec = self._program.call_spec.out_spec
        if spec.type is dict and len(spec.context) == count:
            return [str(key) for key in spec.context]
        return ["output"] if count == 1 else [f"output_{index}" for index in range(count)]

    def _spec(self, arg: Any, name: str) -> TensorSpec:
        value = self._values[arg.name]
        by_torch = {f"torch.{d.torch}": d for d in DATA_TYPES.values() if d.torch}
        if str(value.dtype) not in by_torch:
            raise ModelError(
                f"{self._path}: {name!r} is {value.dtype}; Triton carries {', '.join(by_torch)}"
            )
        fixed = [isinstance(dim, int) for dim in value.shape]
        symbols = [self._axes.get(str(dim), str(dim)) for dim in value.shape]
        return TensorSpec(
            name=name,
            dtype=by_torch[str(value.dtype)],
            dims=tuple(
                int(dim) if known else -1 for dim, known in zip(value.shape, fixed, strict=True)
            ),
            axes=tuple("" if known else s for s, known in zip(symbols, fixed, strict=True)),
        )

    def _bounds(self, side: str, fits: Callable[[int], bool]) -> dict[str, int]:
        """Return by axis those bounds, `lower` or `upper`, that are numbers and fit."""
        bounds: dict[str, int] = {}
        for symbol, constraint in self._program.range_constraints.items():
            bound = getattr(constraint, side)
            if getattr(bound, "is_Integer", False) and fits(int(bound)):
                bounds[self._axes.get(str(symbol), str(symbol))] = int(bound)
        return bounds


def _scripted(path: str, device: str, declared: Declared) -> Program:
    script = Script(path, device, declared)
    return Program(
        module=script.module,
        signature=script.signature,
        call=script,
        writes_in_place=True,
        declared=script.declared,
    )
