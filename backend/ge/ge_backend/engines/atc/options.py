"""The command line of `atc`, Ascend's offline compiler, for one ONNX model and its buckets.

Pure: a request goes in, arguments come out; no file is read and nothing is run. All buckets of a
model become one `.om`, each a *gear* of it: a fixed shape when there is one bucket, batch sizes
when only the batch differs, else lists of the dimensions that differ.
Source of every rule here: CANN's ATC manual (hicann/ge docs/zh/user_guides/atc_tools/CLI_options)
and its checks (compiler/api/aclgrph/option_utils.cc, error codes E10009 to E10046).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ge_backend.errors import ConfigError, ModelError
from ge_backend.model.config.settings import COMPILE_PREFIXES, GE_LEVELS
from ge_backend.tensors import Shape, TensorSpec, agree

__all__ = [
    "CompileRequest",
    "GearOptions",
    "arguments",
    "further_options",
    "gears_of",
    "precision_note",
]

ONNX_FRAMEWORK = 5
# The entries of `aclmdlBatch` and `aclmdlIODims`, and the gears that are listed: the device could
# not list or set more. Source: acl_mdl.h, api/acl/acl_model/model/model_om2.cpp.
ACL_MAX_DIMS = 128
ATC_MAX_GEARS = 100  # 256 on an Ascend 950
MAX_BATCH_GEAR = 2048
# `precision` as on other engines: the type where it is safe, hence the mixed modes.
PRECISION_MODES = {"origin": "origin", "fp16": "mixed_float16", "bf16": "mixed_bfloat16"}
# Chips whose matrix unit has FP16 and INT8 only: Atlas inference products, and the first 910. On
# them `origin` puts FP32 operators on the AI CPU, or does not compile; they have no BF16 at all.
# Source: ATC manual, --precision_mode_v2.
_NO_FP32 = re.compile(r"Ascend310P\w*|Ascend910(Pro|Premium)?[AB]?")

# Options of the C++ GE backend that change what is compiled, and the same of `atc`.
# Source: hicann/ge api/atc/atc_option_map.cc with the keys of ge_common_api_types.h.
GE_OPTIONS: Mapping[str, str] = {
    "ge.aicoreNum": "aicore_num",
    "ge.bufferOptimize": "buffer_optimize",
    "ge.compressionOptimizeConf": "compression_optimize_conf",
    "ge.customizeDtypes": "customize_dtypes",
    "ge.debugDir": "debug_dir",
    "ge.deterministic": "deterministic",
    "ge.dynamicDims": "dynamic_dims",
    "ge.enableSingleStream": "enable_single_stream",
    "ge.enableSmallChannel": "enable_small_channel",
    "ge.exec.allow_hf32": "allow_hf32",
    "ge.exec.atomicCleanPolicy": "atomic_clean_policy",
    "ge.exec.disableReuseMemory": "disable_reuse_memory",
    "ge.exec.modify_mixlist": "modify_mixlist",
    "ge.exec.op_precision_mode": "op_precision_mode",
    "ge.exec.precision_mode": "precision_mode",
    "ge.exec.precision_mode_v2": "precision_mode_v2",
    "ge.externalWeight": "external_weight",
    "ge.fusionSwitchFile": "fusion_switch_file",
    "ge.inputShape": "input_shape",
    "ge.insertOpFile": "insert_op_conf",
    "ge.jit_compile": "jit_compile",
    "ge.oo.level": "oo_level",
    "ge.opDebugLevel": "op_debug_level",
    "ge.opSelectImplmode": "op_select_implmode",
    "ge.op_compiler_cache_dir": "op_compiler_cache_dir",
    "ge.op_compiler_cache_mode": "op_compiler_cache_mode",
    "ge.optimizationSwitch": "optimization_switch",
    "ge.optypelistForImplmode": "optypelist_for_implmode",
    "ge.socVersion": "soc_version",
}
# What `atc` is given from elsewhere, or what would make it do something else than compile.
TAKEN: Mapping[str, str] = {
    "model": "it is the model's own file",
    "framework": "only ONNX is compiled",
    "weight": "only ONNX is compiled",
    "output": "the cache decides it",
    "soc_version": "it is the device's, or --soc-version",
    "input_shape": "the model's buckets say it",
    "input_shape_range": "the model's buckets say it",
    "input_hint_shape": "the model's buckets say it",
    "dynamic_batch_size": "the model's buckets say it",
    "dynamic_image_size": "the model's buckets say it",
    "dynamic_dims": "the model's buckets say it",
    "external_weight": "the cache keeps one file per model",
    "mode": "it would not compile",
    "om": "it would not compile",
    "json": "it would not compile",
    "singleop": "it would not compile",
    "help": "it would not compile",
}
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CORES = re.compile(r"[1-9]\d*(\|([1-9]\d*)?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """What to compile.

    Attributes:
        model: the ONNX file.
        inputs: all inputs of its graph, in the graph's order; -1 is a free dimension.
        shapes: the buckets, each with the full shape of every input, batch included.
        soc: the chip, as `acl.get_soc_name()` gives it: `Ascend910B3`.
        precision: `origin`, `fp16` or `bf16`.
        options: further ones, as config.pbtxt has them: `atc.<option>` for `atc --<option>=…`, and
            keys of the C++ GE backend: `ge.aicoreNum`, `session.ge.exec.precision_mode_v2`, …
            Keys with another prefix are not for the compiler, and count for nothing here.
    """

    model: Path
    inputs: tuple[TensorSpec, ...]
    shapes: tuple[Mapping[str, Shape], ...]
    soc: str
    precision: str = "origin"
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GearOptions:
    """The buckets of a model as `atc` takes them.

    Attributes:
        shapes: the dims of every input, in the graph's order; -1 where the gears differ.
        kind: the option that lists them, `dynamic_batch_size` or `dynamic_dims`; "" for one bucket.
        values: per gear, ascending, what fills each -1 in order; for `dynamic_batch_size` the one
            batch size that fills them all.
    """

    shapes: tuple[tuple[str, Shape], ...]
    kind: str
    values: tuple[Shape, ...]


def arguments(request: CompileRequest) -> tuple[str, ...]:
    """Return the arguments of `atc`, all but `--model` and `--output`.

    Equal requests get equal arguments, however their buckets and options are ordered.

    Raises:
        ConfigError: `atc` has no such gears, or an option collides with what is said elsewhere.
        ModelError: the buckets do not fit the model's inputs.
    """
    gears = gears_of(request)
    options = further_options(request.options)
    if gears.kind == "dynamic_dims" and options.get("input_format", "ND") != "ND":
        raise ConfigError("option 'atc.input_format' must be ND where more than the batch varies")
    if gears.kind == "dynamic_dims" and "insert_op_conf" in options:
        raise ConfigError("atc takes no 'insert_op_conf' where more than the batch varies")
    # AIPP goes with the layout of an image only.
    line = {
        "framework": str(ONNX_FRAMEWORK),
        "soc_version": request.soc,
        "input_format": "NCHW" if "insert_op_conf" in options else "ND",
        "input_shape": ";".join(f"{name}:{_joined(dims)}" for name, dims in gears.shapes),
    }
    if gears.kind:
        separator = ";" if gears.kind == "dynamic_dims" else ","
        line[gears.kind] = separator.join(map(_joined, gears.values))
    line |= _precision(request, options)
    line |= dict(sorted(options.items()))
    return tuple(f"--{name}={value}" for name, value in line.items())


def gears_of(request: CompileRequest) -> GearOptions:
    """Return the gears of a request's buckets.

    Raises:
        ConfigError: there are more than `atc` can compile into one model.
        ModelError: the buckets do not fit the model's inputs.
    """
    if not request.shapes:
        raise ModelError(f"{request.model}: it has no bucket to compile for")
    for spec in request.inputs:
        if ";" in spec.name:
            raise ModelError(f"{request.model}: atc takes no ';' in an input's name: {spec.name!r}")
    buckets = sorted(
        {
            tuple(_shape(spec, bucket, request.model) for spec in request.inputs)
            for bucket in request.shapes
        }
    )
    varying = [
        (at, axis)
        for at, spec in enumerate(request.inputs)
        for axis in range(len(spec.dims))
        if len({bucket[at][axis] for bucket in buckets}) > 1
    ]
    values = [tuple(bucket[at][axis] for at, axis in varying) for bucket in buckets]
    kind = _kind(request, varying, values)
    return GearOptions(
        shapes=tuple(
            (
                spec.name,
                tuple(-1 if (at, axis) in varying else size for axis, size in enumerate(shape)),
            )
            for at, (spec, shape) in enumerate(zip(request.inputs, buckets[0], strict=True))
        ),
        kind=kind,
        values=tuple(value[:1] if kind == "dynamic_batch_size" else value for value in values),
    )


def _shape(spec: TensorSpec, bucket: Mapping[str, Shape], model: Path) -> Shape:
    """Return an input's shape in a bucket, once it is sure that the input can have it."""
    shape = bucket.get(spec.name)
    if shape is None or min(shape, default=1) < 1 or not agree(spec.dims, shape):
        raise ModelError(
            f"{model}: input {spec.name!r} is {spec.describe()}; a bucket has {shape}, expected "
            "a shape of that rank and of sizes from 1 up"
        )
    return tuple(shape)


def _kind(
    request: CompileRequest, varying: Sequence[tuple[int, int]], values: Sequence[Shape]
) -> str:
    """Return which option lists these gears, "" where one shape is all there is."""
    if not varying:
        return ""
    limit = ACL_MAX_DIMS if request.soc.startswith("Ascend950") else ATC_MAX_GEARS
    if len(values) > limit:
        raise ConfigError(
            f"{request.model}: {len(values)} buckets, and atc compiles at most {limit} gears into "
            f"one model for {request.soc}; set the parameter 'max_graphs' to {limit} or less, or "
            "list fewer sizes under 'buckets.<axis>' (compile time grows with each)"
        )
    # atc refuses an input of no dimensions there: E10012.
    only_batch = all(axis == 0 for _, axis in varying) and all(i.dims for i in request.inputs)
    together = all(len(set(value)) == 1 and value[0] <= MAX_BATCH_GEAR for value in values)
    if only_batch and together:
        return "dynamic_batch_size"
    rank = sum(len(spec.dims) for spec in request.inputs)
    if rank > ACL_MAX_DIMS:
        raise ConfigError(
            f"{request.model}: its inputs have {rank} dimensions, and a gear is chosen among at "
            f"most {ACL_MAX_DIMS}; compile it for one bucket, or let only the batch vary"
        )
    return "dynamic_dims"


def further_options(given: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the further options by the name that `atc` has for them."""
    options: dict[str, str] = {}
    for key, value in given:
        if not key.startswith(COMPILE_PREFIXES):
            continue  # it is for the engine that runs the model
        name = _option_name(key)
        if name in TAKEN:
            raise ConfigError(f"option {key!r} cannot be given to atc: {TAKEN[name]}")
        if options.setdefault(name, value) != value:
            raise ConfigError(f"option {key!r} is {value!r}, and {options[name]!r} elsewhere")
    cores = options.get("aicore_num")
    if cores is not None and not _CORES.fullmatch(cores):
        raise ConfigError(
            f"option 'ge.aicoreNum' is {cores!r}; expected cube and vector cores as '12|24', or "
            "AI cores as '10|' on chips that do not tell them apart"
        )
    return options


def _option_name(key: str) -> str:
    name = key.removeprefix("atc.").removeprefix("--")
    if key.startswith("atc.") and _NAME.fullmatch(name):
        return name
    level = next((level for level in GE_LEVELS if key.startswith(level)), "")
    if key.removeprefix(level) not in GE_OPTIONS:
        known = ", ".join(ge for ge, atc in GE_OPTIONS.items() if atc not in TAKEN)
        raise ConfigError(
            f"option {key!r} means nothing to atc; give 'atc.<option>' for one of its own, or "
            f"one of {known}"
        )
    return GE_OPTIONS[key.removeprefix(level)]


def precision_note(request: CompileRequest) -> str:
    """Return what to know about a model's precision on this chip; "" where nothing is amiss."""
    options = further_options(request.options)
    if request.precision != "origin" or not _NO_FP32.fullmatch(request.soc):
        return ""
    if "origin" in options.get("precision_mode_v2", ""):
        return (
            f"{request.soc} has no FP32 matrix unit: in 'origin' FP32 operators run on the AI CPU, "
            "very slowly, or do not compile; leave out the option, or say fp16"
        )
    if {"precision_mode", "precision_mode_v2"} & options.keys():
        return ""
    return (
        f"{request.soc} has no FP32 matrix unit: compiled in fp16; 'atc.precision_mode_v2: origin' "
        "keeps FP32, on the AI CPU and very slowly"
    )


def _precision(request: CompileRequest, options: Mapping[str, str]) -> dict[str, str]:
    """Return the option for the precision: always one, because atc's own default is fp16."""
    precision = request.precision
    if precision not in PRECISION_MODES:
        known = ", ".join(PRECISION_MODES)
        raise ConfigError(f"precision is {precision!r}; expected one of {known}")
    stated = [name for name in ("precision_mode", "precision_mode_v2") if name in options]
    if len(stated) > 1 or (stated and precision != "origin"):
        raise ConfigError(
            f"the precision is stated twice: precision {precision!r}, "
            + ", ".join(f"{name} {options[name]!r}" for name in stated)
            + "; keep one of them"
        )
    if stated:
        return {}
    mode = PRECISION_MODES[precision]
    if _NO_FP32.fullmatch(request.soc):
        if precision == "bf16":
            raise ConfigError(f"precision is 'bf16', which {request.soc} does not have; say 'fp16'")
        mode = "fp16" if precision == "origin" else mode
    return {"precision_mode_v2": mode}


def _joined(dims: Sequence[int]) -> str:
    return ",".join(map(str, dims))
