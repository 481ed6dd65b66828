"""Keys of the C++ GE backend (`npu_ge`), so that a repository made for it moves by changing a word.

Each key does here what it does there, or is refused with the reason; the table is the documentation
(docs/from_cpp_ge_backend.md is made from it). What is for the compiler is handed on as it is.
Source: hicann/triton-inference-server-ge-backend, src/model_state.cpp (keys and their prefixes),
src/model_instance_state.cpp (what becomes of them), src/inference.cpp (`static_model`); for gears
hicann/ge docs/zh/user_guides/graph_dev/more_features/dynamic_shape.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.model.config.settings import GE_LEVELS, MAX_LANES
from ge_backend.tensors import Shape

__all__ = ["CPP_GE_KEYS", "CppGeKey", "InputShapes", "Translated", "runs_row_by_row", "translate"]

# The shapes of all inputs in one bucket (a gear, in GE's words), by name.
InputShapes = Mapping[str, Shape]

OFF = ("", "0", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class CppGeKey:
    """One key: what it does there, and what it does here."""

    key: str
    there: str
    here: str


CPP_GE_KEYS: tuple[CppGeKey, ...] = (
    CppGeKey(
        key="device_ids",
        there="The cards that the model runs on; all cards if not given.",
        here="The same cards, `npu:<id>` each, by estimated time instead of by count, so that "
        "requests of unequal shapes balance too. Not given: `device`, else `GE_DEVICE`, else the "
        "CPU; never all cards.",
    ),
    CppGeKey(
        key="device_exec_blocks",
        there="How many streams, each with a graph of its own, a card has for the model.",
        here="How many runs a card executes at once, `lanes`, each on a stream. Weights are loaded "
        "once. Without effect on a CPU.",
    ),
    CppGeKey(
        key="instance_exec_blocks",
        there="How many streams an instance uses at once; without `device_exec_blocks` a card has "
        "instances times this, divided by the cards.",
        here="The same number of `lanes`. An instance always has all parts of its batch in flight.",
    ),
    CppGeKey(
        key="static_model",
        there="`1`: the graph is compiled for one fixed shape; a batch is run row by row, and "
        "`dynamic_batching` is excluded.",
        here="`buckets.rows` is `1`, so row by row too, unless that, `buckets` or gears say "
        "otherwise; refused beside `dynamic_batching`. An NPU runs fixed shapes without it: remove "
        "it, and batches are run whole.",
    ),
    CppGeKey(
        key="graph.ge.inputShape",
        there="The inputs, by name in alphabetical order, with -1 for what has gears.",
        here="The same, with `graph.ge.dynamicDims`; alone it has no effect, as there.",
    ),
    CppGeKey(
        key="graph.ge.dynamicDims",
        there="The gears: values for each -1, in order; a shape that is no gear is refused.",
        here="The model's buckets. A shape between two gears is padded to the next one; rows are "
        "collected and cut into gears by cost.",
    ),
    CppGeKey(
        key="graph.ge.dynamicNodeType",
        there="`1`: gears belong to the graph's inputs; `0`: to a data set's.",
        here="`1` only, with `graph.ge.dynamicDims`: a served graph reads no data set.",
    ),
    CppGeKey(
        key="session.ge.exec.precision_mode_v2",
        there="The arithmetic: `origin` (the default), `fp16`, `mixed_float16`, …",
        here="The same mode when the model is compiled for an NPU. `precision` is the key that "
        "works on other devices too.",
    ),
    CppGeKey(
        key="ge.aicoreNum",
        there="`12|10`: cube and vector cores for each stream.",
        here="The same, when the model is compiled for an NPU.",
    ),
    CppGeKey(
        key="ge.<option>, session.ge.<option>, graph.ge.<option>, global.ge.<option>",
        there="Options of GE at that level.",
        here="The option of `atc` that does the same (docs/compile.md); one that `atc` has not is "
        "refused, with a list. Without effect on devices that compile nothing.",
    ),
    CppGeKey(
        key="profiling",
        there="`dynamic`, `true`: sets CANN's variables for the whole server.",
        here="Refused: an executor runs all models of its device. Set `PROFILING_MODE` (and "
        "`PROFILING_OPTIONS`) where the server is started; executors have its environment, and are "
        "the processes to profile.",
    ),
    CppGeKey(
        key="dump_graph",
        there="`1`: dumps the graph at each stage of compilation, for the whole server.",
        here="Refused: set `DUMP_GE_GRAPH=2` and `DUMP_GRAPH_PATH` where `ge-backend compile` or "
        "the server is started; what is in the cache is not compiled again.",
    ),
    CppGeKey(
        key="dump_data",
        there="`1`: dumps every operator's data at every run.",
        here="Refused: it would dump every model of the device, not this one.",
    ),
)
_REFUSED = {key.key: key.here for key in CPP_GE_KEYS if key.here.startswith("Refused: ")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """What a configuration means here.

    Attributes:
        parameters: without the keys that were translated, and with ours instead.
        declared_buckets: the shapes that are the model's buckets; empty where none are declared.
        notes: what has no effect, for the log.
    """

    parameters: dict[str, str]
    declared_buckets: tuple[InputShapes, ...] = ()
    notes: tuple[str, ...] = ()


def translate(
    declared: Mapping[str, str], *, kind: str, devices: int, instances: int, dynamic_batching: bool
) -> Translated:
    """Return the parameters of a model in our words; it has this many devices of a kind.

    Raises:
        ConfigError: a value cannot be used, keys contradict each other, or one is refused.
    """
    parameters = dict(declared)
    for key, reason in _REFUSED.items():
        value = parameters.pop(key, "").strip().lower()
        if value not in OFF:
            raise ConfigError(f"parameter {key!r} is {value!r}. {reason}")
    notes = _lanes(parameters, kind=kind, devices=devices, instances=instances)
    gears, more = _gears(parameters)
    more += _static_model(parameters, gears, dynamic_batching=dynamic_batching)
    return Translated(parameters=parameters, declared_buckets=gears, notes=(*notes, *more))


def runs_row_by_row(document: Mapping[str, Any]) -> bool:
    """Whether the host's configuration, as JSON gives it, asks for runs of one row."""
    given = document.get("parameters", {}).get("static_model", {})
    return str(given.get("string_value", "")).strip() not in OFF


def _lanes(
    parameters: dict[str, str], *, kind: str, devices: int, instances: int
) -> tuple[str, ...]:
    """Put `lanes` in the place of blocks; return notes."""
    blocks = _number(parameters, "device_exec_blocks")
    each = _number(parameters, "instance_exec_blocks")
    lanes = blocks or (math.ceil(instances * each / devices) if each else 0)
    if not lanes:
        return ()
    if kind == "cpu":
        return ("device_exec_blocks and instance_exec_blocks have no effect on a cpu",)
    if lanes > MAX_LANES:
        raise ConfigError(
            f"parameter 'instance_exec_blocks' is {each}, which makes {lanes} runs at once on a "
            f"card; expected at most {MAX_LANES}"
        )
    if "lanes" in parameters:
        raise ConfigError("parameter 'lanes' says what device_exec_blocks says; keep one of them")
    parameters["lanes"] = str(lanes)
    return ()


def _number(parameters: dict[str, str], key: str) -> int:
    text = parameters.pop(key, "").strip()
    fits = text.isdecimal() and len(text) <= len(str(MAX_LANES)) and 1 <= int(text) <= MAX_LANES
    if text and not fits:
        raise ConfigError(
            f"parameter {key!r} is {text!r:.80}; expected a whole number from 1 to {MAX_LANES}"
        )
    return int(text or 0)


def _static_model(
    parameters: dict[str, str], gears: tuple[InputShapes, ...], *, dynamic_batching: bool
) -> tuple[str, ...]:
    """Have runs of one row, unless something else says how many there are; return notes."""
    value = parameters.pop("static_model", "").strip()
    if value in OFF:
        return ()
    if value != "1":
        raise ConfigError(f"parameter 'static_model' is {value!r}; expected 0 or 1")
    if dynamic_batching:
        raise ConfigError(
            "parameter 'static_model' runs row by row, and dynamic_batching collects rows to run "
            "them together; remove static_model: an NPU runs fixed shapes in any case"
        )
    given = ["ge.dynamicDims"] * bool(gears) + [*parameters.keys() & {"buckets.rows", "buckets"}]
    if given:
        return (f"static_model has no effect beside {given[0]}, which says what rows a run has",)
    parameters["buckets.rows"] = "1"
    return ()


def _gears(parameters: dict[str, str]) -> tuple[tuple[InputShapes, ...], tuple[str, ...]]:
    """Take the keys of gears out; return these, and notes."""
    node_type = _at_any_level(parameters, "ge.dynamicNodeType")
    if node_type not in {"", "1"}:
        raise ConfigError(
            f"parameter 'ge.dynamicNodeType' is {node_type!r}; expected 1, because a served graph "
            "has inputs and reads no data set"
        )
    shapes, dims = (_at_any_level(parameters, f"ge.{key}") for key in ("inputShape", "dynamicDims"))
    if not dims:
        idle = {"ge.inputShape": shapes, "ge.dynamicNodeType": node_type}
        note = "%s has no effect without ge.dynamicDims, which lists the gears"
        return (), tuple(note % key for key, value in idle.items() if value)
    if not shapes:
        raise ConfigError(
            "parameter 'ge.dynamicDims' lists gears; 'ge.inputShape' must say of what"
        )
    inputs = _inputs(shapes)
    return tuple(_gear(inputs, group, shapes) for group in dims.split(";") if group.strip()), ()


def _at_any_level(parameters: dict[str, str], key: str) -> str:
    """Take a key out, whichever level it was given for; they all mean the same here."""
    given = [level + key for level in ("", *GE_LEVELS) if level + key in parameters]
    values = {parameters.pop(name).strip() for name in given}
    if len(values) > 1:
        raise ConfigError(f"parameter {key!r} has several values: {', '.join(sorted(values))}")
    return values.pop() if values else ""


def _inputs(text: str) -> list[tuple[str, list[int]]]:
    """Return the inputs that `a:-1,3;b:-1` lists, each with its dims.

    Raises:
        ConfigError: it is something else, or the names are not in alphabetical order, in which GE
            hands out the values of a gear, whatever the order here.
    """
    inputs: list[tuple[str, list[int]]] = []
    for part in text.split(";"):
        name, colon, dims = part.strip().rpartition(":")
        sizes = dims.replace(" ", "").split(",") if dims.strip() else []
        if not colon or not all(size.removeprefix("-").isdecimal() for size in sizes):
            raise ConfigError(
                f"parameter 'ge.inputShape' is {text!r}; expected name:dim,…;name:dim,…"
            )
        inputs.append((name.strip(), list(map(int, sizes))))
    names = [name for name, _ in inputs]
    if names != sorted(set(names)):
        raise ConfigError(
            f"parameter 'ge.inputShape' lists {', '.join(names)}; expected each once, in "
            "alphabetical order, because GE hands out the values of ge.dynamicDims in it"
        )
    return inputs


def _gear(inputs: list[tuple[str, list[int]]], group: str, shapes: str) -> InputShapes:
    """Return the shapes of one gear: its values fill each -1, in order."""
    values = [text.strip() for text in group.split(",")]
    free = sum(size == -1 for _, dims in inputs for size in dims)
    if len(values) != free or not all(value.isdecimal() and int(value) for value in values):
        raise ConfigError(
            f"parameter 'ge.dynamicDims': gear {group.strip()!r} must have a number from 1 up for "
            f"each of the {free} -1 in {shapes!r}"
        )
    left = iter(map(int, values))
    return {
        name: tuple(next(left) if size == -1 else size for size in dims) for name, dims in inputs
    }
