"""What the backend's own way through ACL gives on an NPU, beside NumPy, and what it reads there.

Questions as in `npu_probes.py`. One that fails in some way says so, and goes on with the next.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ge_backend.device.base import Graph, GraphSource
from ge_backend.tensors import Array, Shape

from . import npu_models
from .npu_models import IMAGE, WIDTH

if TYPE_CHECKING:
    from .npu_probes import Bench

__all__ = ["far", "health", "images", "pool", "served"]

POOL_BYTES = 64 << 20
TURNS = 50
PHOTO = 16, 16, 3
STATIC = "aipp_op {\n  aipp_mode: static\n  input_format: RGB888_U8\n}\n"
DYNAMIC = "aipp_op {\n  aipp_mode: dynamic\n  max_src_image_size: 4096\n}\n"
# What the same model is told at load.
AT_LOAD = STATIC.replace("static", "dynamic").replace(
    "}", "  src_image_size_h: 16\n  src_image_size_w: 16\n}"
)

Truth = Callable[[Array], Array]


def served(bench: Bench) -> str:
    """Does what is served give what NumPy does: one shape, gears, ranges, with a priority?"""
    rows, tokens, width = npu_models.matrix_product(), npu_models.token_product(), WIDTH
    how = ("--input_format=ND", "--precision_mode_v2=fp16")
    batches = f"--input_shape=x:-1,{width}", "--dynamic_batch_size=1,4", *how
    dims = f"--input_shape=x:-1,-1,{width}", "--dynamic_dims=1,8;4,8;4,16", *how

    def case(
        name: str,
        file: Callable[[], Path],
        model: bytes,
        shapes: Sequence[Shape],
        options: Mapping[str, str] | None = None,
    ) -> str:
        given = tuple((options or {}).items())
        return f"{name} {_tried(lambda: _served(bench, file(), _product(model), shapes, given))}"

    def named() -> Path:
        path = bench.ranges(8)
        axes = {"axes": {"x": ["batch", ""], "y": ["batch", ""]}}
        path.with_name(f"{path.stem}.om.json").write_text(json.dumps(axes))
        return path

    few, more = (1, width), (4, width)
    return "; ".join(
        (
            case("one shape", lambda: bench.fixed("one", 4), rows, [more]),
            case("priority 1", lambda: bench.fixed("one", 4), rows, [more], {"npu.priority": "1"}),
            case("batch gears", lambda: bench.compiled("b", *batches), rows, [few, more]),
            case(
                "dims gears",
                lambda: bench.compiled("d", *dims, model=tokens),
                tokens,
                [(1, 8, width), (4, 8, width), (4, 16, width)],
            ),
            case("ranges", lambda: bench.ranges(8), rows, [few, more, few]),
            case("ranges with names", named, rows, [few, more, few]),
        )
    )


def pool(bench: Bench) -> str:
    """Do two models that take turns in one work memory disturb each other?"""
    truth = _product(npu_models.matrix_product())
    found: dict[int, list[float]] = {4: [], 8: []}
    with bench.device() as device:
        device.reserve(POOL_BYTES)
        graphs = {
            rows: device.load(GraphSource.of(bench.fixed(f"p{rows}", rows))) for rows in found
        }
        try:
            for turn in range(TURNS):
                for rows, graph in graphs.items():
                    x = _drawn((rows, WIDTH), turn)
                    found[rows].append(far(_given(graph, x), truth(x)))
        finally:
            for graph in graphs.values():
                graph.close()
    return f"off by {max(max(some) for some in found.values()):.1e} at most in {TURNS} turns of two"


def images(bench: Bench) -> str:
    """Do photos give what NumPy does, with static and dynamic AIPP, and how are they told of?"""
    shape = f"--input_shape=x:-1,{','.join(map(str, IMAGE))}"
    at_load = bench.folder / "told.cfg"
    at_load.write_text(AT_LOAD)

    def made(name: str, text: str) -> Path:
        config = bench.folder / f"{name}.cfg"
        config.write_text(text)
        how = "--input_format=NCHW", "--dynamic_batch_size=1,4", f"--insert_op_conf={config}"
        return bench.compiled(name, shape, *how, model=npu_models.photo_means())

    def case(name: str, text: str, options: tuple[tuple[str, str], ...]) -> str:
        path = made(name, text)
        inputs = _tried(lambda: _inputs(bench, path))
        shapes = [(1, *PHOTO), (4, *PHOTO)]
        return f"{inputs}, {_tried(lambda: _served(bench, path, _means, shapes, options))}"

    return "; ".join(
        (
            f"static: {_tried(lambda: case('static', STATIC, ()))}",
            f"dynamic: {_tried(lambda: case('dynamic', DYNAMIC, (('npu.aipp', at_load.name),)))}",
        )
    )


def health(bench: Bench) -> str:
    """What is told of the NPU's health, and how long are all threads held up for it?"""
    with bench.device() as device:
        started = time.perf_counter()
        found = device.health()
        return f"{found} in {1e3 * (time.perf_counter() - started):.1f} ms"


def far(found: Array, truth: Array) -> float:
    """Return the largest difference of two arrays, as a part of the largest value."""
    if found.shape != truth.shape:
        raise ValueError(f"{list(found.shape)} came, and not {list(truth.shape)}")
    return float(np.abs(found - truth).max() / np.abs(truth).max())


def _tried(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - what it raises is an answer
        return f"**{type(error).__name__}: {error}**"


def _served(
    bench: Bench,
    path: Path,
    truth: Truth,
    shapes: Sequence[Shape],
    options: tuple[tuple[str, str], ...],
) -> str:
    with bench.device() as device:
        graph = device.load(GraphSource.of(path, options=options))
        try:
            signature = graph.signature
            kind = signature.inputs[0].dtype.numpy
            drawn = [_drawn(shape, at, kind) for at, shape in enumerate(shapes)]
            wrong = [far(_given(graph, x), truth(x)) for x in drawn]
        finally:
            graph.close()
    names = ", ".join(
        f"{spec.name} {spec.describe()}" for spec in (*signature.inputs, *signature.outputs)
    )
    return f"({names}) off by {max(wrong):.1e}"


def _given(graph: Graph, x: Array) -> Array:
    (y,) = graph.run({graph.signature.inputs[0].name: x}, {}, exclusive=False).values()
    return y.astype(np.float32)


def _drawn(shape: Shape, seed: int, kind: Any = np.float32) -> Array:
    drawn = np.random.default_rng(seed)
    if kind == np.uint8:
        return drawn.integers(0, 256, shape, np.uint8)
    return drawn.normal(size=shape).astype(np.float32)


def _product(model: bytes) -> Truth:
    """Return what a matrix product computes, with the weights of its file."""
    onnx = importlib.import_module("onnx")
    (weights,) = onnx.load_model_from_string(model).graph.initializer
    matrix = onnx.numpy_helper.to_array(weights)
    return lambda x: x @ matrix


def _means(x: Array) -> Array:
    """Return each channel's mean, as the model of photos has it."""
    means: Array = x.mean(axis=(1, 2), dtype=np.float32)
    return means.reshape(len(x), -1, 1, 1)


def _inputs(bench: Bench, path: Path) -> str:
    """Return what ACL says of a model's inputs."""
    mdl = bench.acl.mdl
    with bench.opened():
        model, code = mdl.load_from_file(str(path))
        if code:
            return f"load {bench.outcome(code)}"
        desc = mdl.create_desc()
        mdl.get_desc(desc, model)
        found = [
            f"{mdl.get_input_name_by_index(desc, at)}: dims {mdl.get_input_dims(desc, at)[0]}, "
            f"v2 {mdl.get_input_dims_v2(desc, at)[0]}, type {mdl.get_input_data_type(desc, at)}, "
            f"bytes {mdl.get_input_size_by_index(desc, at)}"
            for at in range(mdl.get_num_inputs(desc))
        ]
        mdl.destroy_desc(desc)
        mdl.unload(model)
    return ", ".join(found)
