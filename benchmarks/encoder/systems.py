"""What is compared, as values, and the model repository that has it.

A run compares systems of one arithmetic: `fp32`, `bf16` or `int8`. In `bf16` and `int8` a rival of
more precision stays where a user who wants speed would still take it.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.turns import System
from benchmarks.model_folder import write_model
from benchmarks.rivals.forward import ENGINES
from benchmarks.rivals.made_mask import with_mask_inside
from ge_backend.model.config.settings import SETTINGS
from ge_tools.tritonserver.installation import ServerInstallation

__all__ = [
    "CHECKPOINT",
    "ONNX_FILE",
    "PRECISIONS",
    "QUANTISED_FILE",
    "WIDTH",
    "Served",
    "absent",
    "served_systems",
    "write_repository",
]

PRECISIONS = ("fp32", "bf16", "int8")
ONNX_FILE, QUANTISED_FILE, CHECKPOINT = "model.onnx", "model.int8.onnx", "checkpoint"
WIDTH = 384  # of all-MiniLM-L6-v2's embeddings
CPP = "cpp_onnx"

_CONFIG = """\
backend: "{backend}"
max_batch_size: 32
input [ {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] {ragged} }} ]
output [ {{ name: "sentence_embedding" data_type: TYPE_FP32 dims: [ {width} ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
"""
# Without a batcher every request is its own call, which is what one forward per request wants: in
# a batch the first answers would wait for the last.
_BATCHING = "dynamic_batching {{ {preferred} }}\n"
_BUCKETS = {"buckets.rows": "1,2,4,8,16", "buckets.sequence": "16,32,64,128,256"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One served model.

    Attributes:
        name: in tables.
        backend: Triton's.
        file: what it runs; `checkpoint` is a folder.
        code: of a Python model, a file of `rivals`.
        instances, threads: of each; 0 threads leaves it to the system.
        batches: whether Triton collects requests for it.
        preferred: `preferred_batch_size`; 0: none.
        parameters: of its configuration.
    """

    name: str
    file: str
    backend: str = "ge"
    code: str = ""
    instances: int = 1
    threads: int = 0
    batches: bool = True
    preferred: int = 0
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def system(self) -> System:
        """As the harness names it."""
        layout = f"{self.instances}x{self.threads}" if self.threads else ""
        model = f"{self.name}_{layout}" if layout else self.name
        return System(name=self.name, model=model, layout=layout, ours=self.backend == "ge")


def served_systems(
    precision: str,
    *,
    instances: int = 1,
    cores: int | None = None,
    device: str = "cpu",
    preferred: int = 0,
    only: Sequence[str] = (),
) -> list[Served]:
    """Return ours, and each rival in both layouts that make sense.

    One instance whose forward pass uses every core is what engines do unasked; one instance per
    core with one thread each keeps all cores busy without synchronising them. In every cell a
    rival's better one counts. On another device than the CPU rivals have as many instances as we,
    and all run in torch.

    Args:
        precision: one of `PRECISIONS`.
        instances: of ours.
        cores: of the machine.
        device: where all of them run.
        preferred: of one more of ours with this `preferred_batch_size`; 0: there is none.
        only: names; all if empty.
    """
    cores = cores or os.cpu_count() or 1
    if device == "cpu":
        layouts = list(dict.fromkeys(((1, cores), (cores, 1))))
        found = _ours(precision, instances, preferred)
        found += [
            _rival(*rival, *layout, "cpu") for rival in _RIVALS[precision] for layout in layouts
        ]
    else:
        torch = "torch-bf16" if precision == "bf16" else "torch"
        shared = {"precision": _origin(precision), "device": device}
        files = {"ge": ENGINES[torch], "ge_checkpoint": CHECKPOINT}
        found = [
            Served(name=name, file=file, instances=instances, parameters=shared)
            for name, file in files.items()
        ]
        found += [
            _rival(name, name, torch, instances, 1, device)
            for name in ("one_forward", "pad_longest", "packed")
        ]
    return [served for served in found if not only or served.name in only]


def _origin(precision: str) -> str:
    return "origin" if precision == "fp32" else precision


def _ours(precision: str, instances: int, preferred: int) -> list[Served]:
    shared = {"precision": _origin(precision)}
    checkpoint = Served(
        name="ge_checkpoint", file=CHECKPOINT, instances=instances, parameters=shared
    )
    process = Served(
        name="ge_process",
        file=CHECKPOINT,
        instances=2,
        parameters={**shared, "executor": "process"},
    )
    file = Served(
        name="ge_openvino",
        file=ONNX_FILE,
        instances=instances,
        parameters={**shared, "engine": "openvino"},
    )
    found = [checkpoint, process]
    if precision == "fp32":
        onnx = {**shared, "engine": "onnxruntime"}
        found[:0] = [
            Served(name="ge", file=ONNX_FILE, instances=instances, parameters=onnx),
            Served(
                name="ge_onnx_process",
                file=ONNX_FILE,
                instances=2,
                parameters={**onnx, "executor": "process"},
            ),
        ]
    if precision != "int8":
        found.append(file)
    if preferred:
        found.append(
            Served(
                name="ge_preferred",
                file=CHECKPOINT,
                instances=instances,
                preferred=preferred,
                parameters=shared,
            )
        )
    return found


# Precision -> name, code and engine of its rivals. `cpp_onnx` has no code.
_RIVALS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "fp32": (
        ("onnx", "one_forward", "onnx"),
        ("openvino", "one_forward", "openvino"),
        ("pad_longest", "pad_longest", "onnx"),
        ("packed", "packed", "torch"),
        (CPP, "", "onnx"),
    ),
    "bf16": (
        ("openvino_bf16", "one_forward", "openvino-bf16"),
        ("pad_longest_bf16", "pad_longest", "torch-bf16"),
        ("packed_bf16", "packed", "torch-bf16"),
        (CPP, "", "onnx"),
    ),
    "int8": (
        ("onnx_int8", "one_forward", "onnx-int8"),
        ("openvino_bf16", "one_forward", "openvino-bf16"),
        (f"{CPP}_int8", "", "onnx-int8"),
    ),
}


def _rival(name: str, code: str, engine: str, instances: int, threads: int, device: str) -> Served:
    if not code:
        parameters = {"intra_op_thread_count": str(threads)}
    else:
        parameters = {"engine": engine, "threads": str(threads), "device": device}
    return Served(
        name=name,
        file=CHECKPOINT if code == "packed" else ENGINES[engine],
        backend="python" if code else "onnxruntime",
        code=code,
        instances=instances,
        threads=threads,
        batches=code != "one_forward",
        parameters=parameters,
    )


def absent(served: Served, installation: ServerInstallation, files: Mapping[str, Path]) -> str:
    """Return why a system cannot be served here; "" if it can."""
    if served.file not in files:
        return f"this encoder has no {served.file}"
    precision = served.parameters.get("precision", "origin")
    if served.backend == "ge" and precision not in _known_precisions():
        return f"the backend has no precision {precision} yet"
    needs = [served.parameters.get("engine", ""), served.backend]
    if any("openvino" in need for need in needs) and not importlib.util.find_spec("openvino"):
        return "OpenVINO is not installed: pip install openvino"
    if served.backend == "onnxruntime" and not (installation.backends / served.backend).is_dir():
        return (
            f"{installation.backends} has no onnxruntime backend; Triton's container has one "
            "(name it with GE_TRITONSERVER), and so has a build of "
            "triton-inference-server/onnxruntime_backend"
        )
    return ""


def _known_precisions() -> Sequence[str]:
    return next(setting.choices for setting in SETTINGS if setting.key == "precision")


def write_repository(
    root: Path, systems: Sequence[Served], files: Mapping[str, Path], width: int = WIDTH
) -> None:
    """Write one model per system.

    Args:
        root: the model repository, new.
        systems: what is in it.
        files: the encoder's files and its checkpoint, by name.
        width: of the encoder's output.
    """
    for served in systems:
        # Triton's C++ backend has ragged tensors end to end, and batches those of one length.
        ragged = "" if served.backend == "onnxruntime" else "allow_ragged_batch: true"
        config = _CONFIG.format(
            backend=served.backend, instances=served.instances, width=width, ragged=ragged
        )
        if served.batches:
            bound = f"preferred_batch_size: [ {served.preferred} ]" if served.preferred else ""
            config += _BATCHING.format(preferred=bound)
        version = write_model(
            root / served.system.model,
            config,
            {**(_BUCKETS if served.backend == "ge" else {}), **served.parameters},
            code=(served.code, "forward") if served.code else (),
        )
        source = files[served.file].resolve()
        if served.backend == "onnxruntime":
            with_mask_inside(source, version / ONNX_FILE)
        elif served.backend == "ge" and served.file == CHECKPOINT:
            version.rmdir()
            version.symlink_to(source, target_is_directory=True)
        else:
            (version / served.file).symlink_to(source)
