"""Everything that can be configured, read in one place.

A model is configured in its `config.pbtxt`: in the host's own fields wherever Triton has one, else
as `parameters`. Machine-wide settings are `GE_*` environment variables, because nothing from
`--backend-config=ge,…` reaches a Python-based backend on this host. Precedence: parameters, then
`GE_*`, then the default. Unknown keys are errors that list the known ones.
The tables of keys are in `settings.py`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError
from ge_backend.model.config.cpp_ge_keys import translate
from ge_backend.model.config.described import graph_blocks
from ge_backend.model.config.engine_table import ENGINES
from ge_backend.model.config.host_fields import stalling, unread
from ge_backend.model.config.inside import inside
from ge_backend.model.config.instances import instance_names
from ge_backend.model.config.placement import Placement, place
from ge_backend.model.config.required import required
from ge_backend.model.config.sequence_batching import SequenceBatching
from ge_backend.model.config.settings import (
    ASSUMPTIONS,
    COMPILE_PREFIXES,
    ENGINE_PREFIXES,
    FAMILIES,
    GENERATION_SETTINGS,
    HOST_KEYS,
    HOST_PREFIXES,
    MACHINE_SETTINGS,
    MAX_LANES,
    MAX_LENGTH,
    MAX_THREADS,
    OF_FUSED,
    REMOVED,
    SETTINGS,
    VLLM,
    Setting,
)
from ge_backend.model.config.sizes import parse_bytes, parse_device_bytes
from ge_backend.model.config.warmup_samples import WarmupSample, warmup_samples
from ge_backend.tensors import DataType, Shape, data_type

__all__ = [
    "BATCH_INPUT_KINDS",
    "BatchInput",
    "BatchOutput",
    "MachineConfig",
    "ModelConfig",
    "QueuePolicy",
    "TensorConfig",
]


BATCH_INPUT_KINDS = (
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
)
# The kind of device for which models are compiled ahead.
COMPILED = "npu"
# Where a setting has no other bound: no machine has so much of anything.
MAX_COUNT = 10**18 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorConfig:
    """An input or output as config.pbtxt declares it.

    Attributes:
        dims: without the batch dimension; -1 is free.
        graph_dims: what the graph sees: `reshape.shape` where given (the host reshapes), else dims.
        ragged: `allow_ragged_batch`.
    """

    name: str
    dtype: DataType
    dims: Shape
    graph_dims: Shape
    ragged: bool
    optional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput:
    """One `batch_input` block: a tensor that describes the batch itself."""

    kind: str
    names: tuple[str, ...]
    dtype: DataType
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutput:
    """One `batch_output` block: outputs scattered back by the shapes of a source input."""

    kind: str
    names: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """Bounds of a model's own queue: how many requests wait for an instance, and how long.

    Attributes:
        max_size: while a batch is served; 0 is no bound.
        timeout_us: until a request begins to run, if its client says nothing shorter; 0 is no
            bound.
    """

    max_size: int
    timeout_us: int

    @classmethod
    def of(cls, max_size: int, timeout_us: int, *, sequences: bool) -> QueuePolicy | None:
        """Return it; None where nothing is bounded.

        Raises:
            ConfigError: the model takes part in sequences.
        """
        if not (max_size or timeout_us):
            return None
        if sequences:
            raise ConfigError(
                "max_queue_size and default_timeout_microseconds do not go with sequence_batching, "
                "whose requests have to be served in Triton's order; leave them out"
            )
        return cls(max_size=max_size, timeout_us=timeout_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConfig:
    """What holds for every model on this machine; see `MACHINE_SETTINGS`."""

    runtime_dir: Path
    python: str
    vllm_python: str
    library_path: str
    linger_s: float
    spare: str
    run_timeout_s: float
    workspace_pool: Mapping[str, int]
    executor_memory: Mapping[str, int]
    kept_bytes: int
    cache_dir: Path | None
    numpy_2: bool
    acl_config: str

    @classmethod
    def here(cls) -> MachineConfig:
        """Read the variables of this process, whose parent is the server; as `read`."""
        return cls.read(os.environ, owner_pid=os.getppid())

    @classmethod
    def read(cls, environment: Mapping[str, str], *, owner_pid: int) -> MachineConfig:
        """Read the `GE_*` variables for the server `owner_pid`.

        Raises:
            ConfigError: a value cannot be used.
        """
        given = {s.key: _setting(s, {}, environment)[0] for s in MACHINE_SETTINGS}
        python = given["python"] or sys.executable or "python3"
        return cls(
            runtime_dir=_runtime_dir(given["runtime_dir"], owner_pid),
            python=python,
            vllm_python=given["vllm_python"] or python,
            library_path=given["library_path"],
            linger_s=_seconds("GE_EXECUTOR_LINGER_S", given["linger_s"]),
            spare=given["spare"],
            run_timeout_s=_seconds("GE_RUN_TIMEOUT_S", given["run_timeout_s"]),
            workspace_pool=parse_device_bytes(given["workspace_pool"], "GE_WORKSPACE_POOL"),
            executor_memory=parse_device_bytes(given["executor_memory"], "GE_EXECUTOR_MEMORY"),
            kept_bytes=parse_bytes(given["keep_files"], "GE_KEEP_FILES"),
            cache_dir=_cache_dir(given["cache_dir"], environment),
            numpy_2=given["numpy_2"] == "allow",
            acl_config=given["acl_config"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model's configuration.

    Attributes:
        directory: the version folder, which holds the model file.
        max_batch_size: 0 when the model has no batch dimension.
        inputs, outputs: the graph's, which has none of those of `described`.
        declared_buckets: shapes of all inputs that are its buckets; empty if none are declared so.
        notes: what is said and has no effect, or is a danger, for the log.
        lanes: how many runs a device should execute at once; 0: as many as suit it.
        sequence: how it takes part in sequences; None where it does not.
        queue: the bounds of its own queue; None where it has none and requests wait in the host's.
        buckets, pad, generate, axes, lengths: the families, by the name that follows the dot.
        assume: what is taken as given of the model, and not tested.
        warmup_samples: values of inputs that the host's own warm-up reads from files.
        options: what is only for the engine, by whole keys, sorted.
        generation: the settings of text generation, by key; of use to a language model.
    """

    name: str
    version: str
    directory: Path
    filename: str
    max_batch_size: int
    sequence: SequenceBatching | None
    instances: int
    inputs: tuple[TensorConfig, ...]
    outputs: tuple[TensorConfig, ...]
    batch_inputs: tuple[BatchInput, ...]
    batch_outputs: tuple[BatchOutput, ...]
    placement: Placement
    declared_buckets: tuple[Mapping[str, Shape], ...]
    notes: tuple[str, ...]
    lanes: int
    executor: str
    fuse: str
    precision: str
    engine: str
    threads: int
    overflow: str
    ragged: str
    max_length: int
    max_elements: int
    max_graphs: int
    bucket_file: Path | None
    warmup: bool
    warmup_background: bool
    learn: str
    response_parameters: bool
    assume: frozenset[str]
    warmup_samples: tuple[WarmupSample, ...]
    priority: int
    queue: QueuePolicy | None
    buckets: Mapping[str, str]
    pad: Mapping[str, float]
    generate: Mapping[str, str]
    axes: Mapping[str, tuple[str, ...]]
    lengths: Mapping[str, str]
    options: tuple[tuple[str, str], ...]
    generation: Mapping[str, str]

    @classmethod
    def read(
        cls,
        config: Mapping[str, Any],
        *,
        directory: Path,
        version: str,
        environment: Mapping[str, str],
    ) -> ModelConfig:
        """Read the host's model configuration (as JSON gives it) and the `GE_*` variables.

        Raises:
            ConfigError: a key is unknown or a value cannot be used; names both and the model.
        """
        name = str(config["name"])
        try:
            return _read_model(cls, config, directory, version, environment)
        except ConfigError as error:
            raise ConfigError(f"model {name!r}: {error}") from error

    @property
    def device(self) -> str:
        """The first device, which speaks for all: they are of one kind."""
        return self.placement.devices[0]

    @property
    def concatenate(self) -> bool:
        """Whether ragged inputs are concatenated flat rather than padded."""
        described = bool(self.batch_inputs or self.batch_outputs)
        return self.ragged == "concatenate" or (self.ragged == "auto" and described)


def _read_model(
    cls: type[ModelConfig],
    config: Mapping[str, Any],
    directory: Path,
    version: str,
    environment: Mapping[str, str],
) -> ModelConfig:
    written = {
        key: str(value.get("string_value", ""))
        for key, value in dict(config.get("parameters", {})).items()
    }
    given = {key: value for key, value in written.items() if key not in REMOVED}
    placement = place(
        device=given.get("device", "").strip(),
        device_ids=given.get("device_ids", "").strip(),
        forced=environment.get("GE_DEVICE", "").strip(),
    )
    instances = len(instance_names(config))
    sequence = SequenceBatching.read(config, directory=directory)
    ours = translate(
        given,
        kind=placement.kind,
        devices=len(placement.devices),
        instances=instances,
        dynamic_batching="dynamic_batching" in config,
    )
    gone = sorted(written.keys() - given.keys())
    scalars, families = _sort_keys(ours.parameters)
    said = {setting.key: _setting(setting, scalars, environment) for setting in SETTINGS}
    values = {key: value for key, (value, _) in said.items()}
    count = functools.partial(_count, said)
    taken, given_back = graph_blocks(config)
    inputs = tuple(_tensor(block, "an input") for block in taken)
    idle = (
        *_idle(ours.parameters, placement.kind, values["engine"]),
        *_sent(families["generate."], inputs),
    )
    return cls(
        name=str(config["name"]),
        version=version,
        directory=directory,
        filename=_filename(config, directory),
        max_batch_size=int(config.get("max_batch_size", 0)),
        sequence=sequence,
        instances=instances,
        inputs=inputs,
        outputs=tuple(_tensor(block, "an output") for block in given_back),
        batch_inputs=tuple(map(_batch_input, config.get("batch_input", []))),
        batch_outputs=tuple(map(_batch_output, config.get("batch_output", []))),
        placement=placement,
        declared_buckets=ours.declared_buckets,
        notes=(
            *unread(config),
            *(f"{key}: there is no such parameter any more: {REMOVED[key]}" for key in gone),
            *stalling(config),
            *(_of_steps(given) if values["fuse"] else (*placement.notes, *ours.notes, *idle)),
            *(_unused(placement, instances) if sequence is not None else ()),
            *(sequence.notes if sequence is not None else ()),
        ),
        lanes=count("lanes", least=0, most=MAX_LANES),
        executor=values["executor"],
        fuse=values["fuse"],
        precision=values["precision"],
        engine="" if values["engine"] == "first" else values["engine"],
        threads=count("threads", least=0, most=MAX_THREADS),
        overflow=values["overflow"],
        ragged=values["ragged"],
        max_length=count("max_length", least=1, most=MAX_LENGTH),
        max_elements=count("max_elements", least=0),
        max_graphs=count("max_graphs", least=0),
        bucket_file=_bucket_file(values["buckets"], directory),
        warmup=values["warmup"] != "off",
        warmup_background=values["warmup"] == "background",
        learn=values["learn"],
        response_parameters=values["response_parameters"] == "on",
        assume=_assumed(*said["assume"]),
        warmup_samples=warmup_samples(config, directory),
        priority=int(values["priority"]),
        queue=QueuePolicy.of(
            count("max_queue_size", least=0),
            count("default_timeout_microseconds", least=0),
            sequences="sequence_batching" in config,
        ),
        buckets=families["buckets."],
        pad={key: _number(f"pad.{key}", text) for key, text in families["pad."].items()},
        generate={key: _generator(key, text) for key, text in families["generate."].items()},
        axes={
            key: tuple(part.strip() for part in text.split(","))
            for key, text in families["axes."].items()
        },
        lengths={key: text.strip() for key, text in families["lengths."].items()},
        options=tuple(
            sorted((p + k, text) for p in ENGINE_PREFIXES for k, text in families[p].items())
        ),
        generation={s.key: _setting(s, scalars, environment)[0] for s in GENERATION_SETTINGS},
    )


def _idle(parameters: Mapping[str, str], kind: str, engine: str) -> tuple[str, ...]:
    """Return the note on options of compilers and engines of which none will run."""
    heard = {row.options for row in ENGINES if kind in row.kinds}
    heard |= {*COMPILE_PREFIXES, "npu."} if kind == COMPILED else set()
    heard |= {f"{VLLM}."} if engine == VLLM else set()
    idle = tuple(prefix for prefix in ENGINE_PREFIXES if prefix not in heard)
    keys = sorted(key for key in parameters if key.startswith(idle))
    if not keys:
        return ()
    return (f"{', '.join(keys)}: no effect on {kind}, where no engine of this model reads them",)


def _of_steps(parameters: Iterable[str]) -> tuple[str, ...]:
    """Return the note on parameters that a fused model leaves to its steps."""
    idle = sorted(
        key for key in {*parameters} - {*OF_FUSED, *HOST_KEYS} if not key.startswith(HOST_PREFIXES)
    )
    if not idle:
        return ()
    return (f"{', '.join(idle)}: no effect on a fused model; give them to its steps",)


def _sent(made: Iterable[str], inputs: Iterable[TensorConfig]) -> tuple[str, ...]:
    """Return the notes on inputs that are to be made, and that every request has to send."""
    required = {tensor.name for tensor in inputs if not tensor.optional}
    return tuple(
        f"generate.{name}: no effect, since every request sends {name!r}; declare that input with "
        "'optional: true', or not at all"
        for name in sorted(required.intersection(made))
    )


def _unused(placement: Placement, instances: int) -> tuple[str, ...]:
    """Return the note on devices that no instance takes, where each instance takes one."""
    unused = placement.devices[instances:]
    if not unused:
        return ()
    note = (
        f"{', '.join(unused)}: not used: sequences stay with an instance, each of which takes one "
        f"device; let the counts of instance_group add up to {len(placement.devices)} or more"
    )
    return (note,)


def _sort_keys(
    parameters: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the scalar settings and, per family prefix, what follows the dot."""
    known = {setting.key for setting in (*SETTINGS, *GENERATION_SETTINGS)}
    scalars: dict[str, str] = {}
    families: dict[str, dict[str, str]] = {family.prefix: {} for family in FAMILIES}
    unknown: list[str] = []
    for key, value in parameters.items():
        prefix = key[: key.find(".") + 1]
        if key in known:
            scalars[key] = value
        elif prefix in families and key != prefix:
            families[prefix][key[len(prefix) :]] = value
        elif key not in HOST_KEYS and not key.startswith(HOST_PREFIXES):
            unknown.append(key)
    if unknown:
        what = "parameters %s are" if len(unknown) > 1 else "parameter %s is"
        told = ", ".join(map(repr, sorted(unknown)))
        names = sorted(known) + [f"{f.prefix}<{f.placeholder}>" for f in FAMILIES]
        similar = [name for key in unknown for name in get_close_matches(key, names)]
        raise ConfigError(
            f"{what % told} unknown; known are {', '.join(dict.fromkeys(similar + names))}; "
            "docs/from_cpp_backends.md says what becomes of those of Triton's C++ backends"
        )
    return scalars, families


def _setting(
    setting: Setting, scalars: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str, str]:
    """Return a setting's value, and what it comes from, as messages call it."""
    value, origin = setting.default, f"parameter {setting.key!r}"
    if setting.key in scalars:
        value = scalars[setting.key].strip()
    elif setting.variable and environment.get(setting.variable):
        value, origin = environment[setting.variable].strip(), setting.variable
    if setting.choices and value not in setting.choices:
        raise ConfigError(f"{origin} is {value!r}; expected one of {', '.join(setting.choices)}")
    return value, origin


def _assumed(text: str, origin: str) -> frozenset[str]:
    names = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not names <= set(ASSUMPTIONS):
        raise ConfigError(f"{origin} is {text!r:.80}; expected some of {', '.join(ASSUMPTIONS)}")
    return names


def _count(
    said: Mapping[str, tuple[str, str]], key: str, *, least: int, most: int = MAX_COUNT
) -> int:
    text, origin = said[key]
    # Python refuses to read thousands of digits.
    short = text.isdecimal() and len(text) <= len(str(most))
    if not (short and least <= int(text) <= most):
        raise ConfigError(
            f"{origin} is {text!r:.80}; expected a whole number from {least} to {most}"
        )
    return int(text)


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{key!r} is {text!r}; expected a number") from error


def _seconds(key: str, text: str) -> float:
    seconds = _number(key, text)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ConfigError(f"{key!r} is {text!r}; expected seconds, 0 or more")
    return seconds


def _filename(config: Mapping[str, Any], directory: Path) -> str:
    name = str(config.get("default_model_filename", ""))
    if name:
        inside(directory, name, "default_model_filename")
    return name


def _bucket_file(text: str, directory: Path) -> Path | None:
    if not text:
        return None
    scheme, _, name = text.partition(":")
    if scheme != "file" or not name.strip():
        raise ConfigError(
            f"parameter 'buckets' is {text!r}; expected file:NAME, or sizes per axis under "
            "'buckets.rows' and 'buckets.<axis>'"
        )
    return inside(directory.parent, name.strip(), "parameter 'buckets'")


def _runtime_dir(text: str, owner_pid: int) -> Path:
    if text:
        return Path(text)
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no folder for the executors' sockets: {error.strerror}; set GE_RUNTIME_DIR "
            "to one that can be written to"
        ) from error
    return folder / f"ge-backend-{os.getuid()}-{owner_pid}"


def _cache_dir(text: str, environment: Mapping[str, str]) -> Path | None:
    if text == "off":
        return None
    if text:
        return Path(text)
    shared = Path(environment.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():
        return shared / "ge-backend"
    home = _home()
    return None if home is None else home / ".cache" / "ge-backend"


def _home() -> Path | None:
    """Return this user's folder; None for one without, as containers give any user id."""
    try:
        home = Path.home()
    except RuntimeError:  # HOME is not set, and the user id has no name
        return None
    return None if home == Path("/") else home


GENERATORS = ("mask", "lengths", "positions", "zeros")
LENGTHS_OF = "lengths:"  # and the name of an axis
NUMBER = "number:"  # and the number, as it is read


def _generator(key: str, text: str) -> str:
    text = text.strip()
    if text in GENERATORS or text.startswith(LENGTHS_OF):
        return text
    with contextlib.suppress(ValueError):
        return f"{NUMBER}{float(text)!r}"
    raise ConfigError(
        f"parameter 'generate.{key}' is {text!r}; expected one of {', '.join(GENERATORS)}, "
        f"{LENGTHS_OF}<axis>, or a number"
    )


def _tensor(block: Mapping[str, Any], what: str) -> TensorConfig:
    dims = _dims(block.get("dims", []))
    reshape = block.get("reshape")
    return TensorConfig(
        name=required(block, "name", what),
        dtype=data_type(required(block, "data_type", what)),
        dims=dims,
        graph_dims=dims if reshape is None else _dims(reshape.get("shape", [])),
        ragged=bool(block.get("allow_ragged_batch", False)),
        optional=bool(block.get("optional", False)),
    )


def _dims(values: Any) -> Shape:
    return tuple(int(value) for value in values)


def _batch_input(block: Mapping[str, Any]) -> BatchInput:
    kind = str(block.get("kind", BATCH_INPUT_KINDS[0]))
    if kind not in BATCH_INPUT_KINDS:
        raise ConfigError(
            f"batch_input kind {kind!r} is unknown; known are {', '.join(BATCH_INPUT_KINDS)}"
        )
    return BatchInput(
        kind=kind,
        names=tuple(map(str, block.get("target_name", []))),
        dtype=data_type(str(block.get("data_type", "TYPE_FP32"))),
        sources=tuple(map(str, block.get("source_input", []))),
    )


def _batch_output(block: Mapping[str, Any]) -> BatchOutput:
    return BatchOutput(
        kind=str(block.get("kind", "BATCH_SCATTER_WITH_INPUT_SHAPE")),
        names=tuple(map(str, block.get("target_name", []))),
        sources=tuple(map(str, block.get("source_input", []))),
    )
