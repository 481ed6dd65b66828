"""What a server would ask the compiler for a model, found out without the device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ge_backend.engines.atc.aipp import preprocessing_of
from ge_backend.engines.atc.options import CompileRequest
from ge_backend.engines.ort.signature import read_onnx_signature
from ge_backend.errors import ConfigError
from ge_backend.model.config.model_folder import read_folder
from ge_backend.model.layout.auto_complete import completed
from ge_backend.model.layout.layout import build_layout
from ge_backend.serving.warmup.shaped import recorded_traffic
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.warmup import bucket_shapes
from ge_backend.shapes.buckets.build import build_grid
from ge_backend.shapes.buckets.grid import BucketGrid
from ge_backend.tensors import PREPARED, Signature

__all__ = ["Ahead", "look_ahead"]

FILENAME = "model.onnx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """A model as a server on an NPU would prepare it.

    Attributes:
        signature: the compiled model's.
        request: what the device would have compiled.
    """

    name: str
    signature: Signature
    grid: BucketGrid
    request: CompileRequest


def look_ahead(
    path: Path, *, soc: str, options: tuple[tuple[str, str], ...], cache_dir: Path | None
) -> Ahead:
    """Return what is compiled for the model of a folder, with options in place of its own.

    Traffic that is recorded in `cache_dir` decides what `max_graphs` leaves.

    Raises:
        GeError: the model would not load in a server either, or it is not ONNX.
    """
    folder = read_folder(path)
    environment: Mapping[str, str] = os.environ
    given = folder.config(environment)
    file = folder.directory / (given.filename or FILENAME)
    if file.suffix != ".onnx" or not file.is_file():
        raise ConfigError(f"{path}: ONNX is compiled, and there is no {file.with_suffix('.onnx')}")
    own = read_onnx_signature(file)
    request = CompileRequest(
        model=file,
        inputs=own.inputs,
        shapes=(),
        soc=soc,
        precision=given.precision,
        options=tuple(sorted({**dict(given.options), **dict(options)}.items())),
    )
    images = preprocessing_of(request)
    signature = images.signature(own)
    config = folder.config(environment, completed(folder.document, given, signature))
    layout = build_layout(config, signature, PREPARED)
    traffic = recorded_traffic(config, Store(cache_dir))
    grid = build_grid(config, layout, PREPARED, traffic=traffic)
    return Ahead(
        name=config.name,
        signature=signature,
        grid=grid,
        request=replace(
            request,
            shapes=tuple(images.shapes(bucket_shapes(b, layout)) for b in grid.entries),
        ),
    )
