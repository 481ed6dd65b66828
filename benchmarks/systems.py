"""The systems under test as one model repository: our backend and its rivals, on one engine.

Whatever the engine of the others is: `ge_packed`, `ge_inline` and `packed` run the encoder's
checkpoint without padding, `ge_openvino` and `cpp_onnx` its ONNX file. `ge_bounded` is `ge_packed`
with a bound on what an instance takes at once.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pbtxt import parameter_lines
from benchmarks.rivals.forward import ENGINES
from benchmarks.rivals.made_mask import with_mask_inside
from ge_tools.tritonserver.installation import ServerInstallation

__all__ = [
    "ALL_OURS",
    "CHECKPOINT",
    "CPP_ONNX",
    "ONNX_FILE",
    "OURS",
    "OURS_BOUNDED",
    "OURS_INLINE",
    "OURS_OPENVINO",
    "OURS_PACKED",
    "RIVALS",
    "UNASKED",
    "WIDTH",
    "System",
    "absent",
    "systems",
    "write_repository",
]

OURS = "ge"
OURS_PACKED = "ge_packed"
OURS_INLINE = "ge_inline"
OURS_OPENVINO = "ge_openvino"
OURS_BOUNDED = "ge_bounded"
# Those that run without an option of the benchmark.
UNASKED = (OURS, OURS_PACKED, OURS_INLINE, OURS_OPENVINO)
ALL_OURS = (*UNASKED, OURS_BOUNDED)
RIVALS = ("one_forward", "pad_longest", "packed")
CPP_ONNX = "cpp_onnx"
ONNX_FILE = "model.onnx"
WIDTH = 384  # of all-MiniLM-L6-v2's embeddings
# What is compared on the CPU alone.
CPU_ONLY = (OURS_INLINE, OURS_OPENVINO, CPP_ONNX)
CHECKPOINT = "checkpoint"
SOURCES = Path(__file__).parent / "rivals"
# Those that do not run the file of the run's engine.
_FILES = {"packed": CHECKPOINT, OURS_OPENVINO: ONNX_FILE}

_CONFIG = """\
backend: "{backend}"
max_batch_size: 32
input [ {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "sentence_embedding" data_type: TYPE_FP32 dims: [ {width} ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
"""
# Without a batcher every request is its own call, which is what one forward per request wants: in
# a batch the first answers would wait for the last.
_BATCHING = "dynamic_batching {{ {preferred} }}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One served model.

    Attributes:
        name: one of `ALL_OURS`, of `RIVALS`, or `cpp_onnx`.
        instances: `instance_group` count.
        threads: CPU threads of one forward pass; 0 leaves it to the system.
        preferred: `preferred_batch_size`, so many requests an instance takes at once; 0: none.
    """

    name: str
    instances: int
    threads: int = 0
    preferred: int = 0

    @property
    def ours(self) -> bool:
        """Whether our backend serves it."""
        return self.name in ALL_OURS

    @property
    def model(self) -> str:
        """The name under which it is served."""
        return f"{self.name}_{self.instances}x{self.threads}" if self.threads else self.name


def absent(installation: ServerInstallation, device: str = "cpu") -> dict[str, str]:
    """Return the systems that cannot be served here, each with the reason."""
    missing: dict[str, str] = {}
    if device != "cpu":
        return dict.fromkeys(CPU_ONLY, "it is compared on the CPU")
    if importlib.util.find_spec("openvino") is None:
        missing[OURS_OPENVINO] = "OpenVINO is not installed: pip install openvino"
    if not (installation.backends / "onnxruntime").is_dir():
        missing[CPP_ONNX] = (
            f"{installation.backends} has no onnxruntime backend; Triton's container has one "
            "(name it with GE_TRITONSERVER), and so has a build of "
            "triton-inference-server/onnxruntime_backend"
        )
    return missing


def systems(
    instances: int,
    cores: int | None = None,
    *,
    without: Collection[str] = (),
    device: str = "cpu",
    preferred: int = 0,
) -> tuple[System, ...]:
    """Return our backend, and each rival in both layouts that make sense.

    `ge_bounded` is among them where it has a preferred size.

    Instances that have their executor in their own process would share nothing, so that is one.

    One instance whose forward pass uses every core is what the engines do unasked; one instance
    per core with one thread each keeps all cores busy without synchronising them. Both are run, and
    in every cell of the report a rival's better one counts. On another device than the CPU rivals
    have as many instances as we.
    """
    cores = cores or os.cpu_count() or 1
    layouts = dict.fromkeys(((1, cores), (cores, 1)) if device == "cpu" else ((instances, 1),))
    served = (
        *(_ours(name, instances, preferred) for name in (ALL_OURS if preferred else UNASKED)),
        *(System(name=r, instances=i, threads=t) for r in (*RIVALS, CPP_ONNX) for i, t in layouts),
    )
    return tuple(system for system in served if system.name not in without)


def _ours(name: str, instances: int, preferred: int) -> System:
    return System(
        name=name,
        instances=1 if name == OURS_INLINE else instances,
        preferred=preferred if name == OURS_BOUNDED else 0,
    )


def write_repository(
    root: Path,
    served: tuple[System, ...],
    engine: str,
    encoder: Mapping[str, Path],
    *,
    width: int = WIDTH,
    device: str = "cpu",
) -> None:
    """Write one model per system.

    Args:
        root: the model repository, new.
        served: what is in it.
        engine: what runs the encoder: a key of `ENGINES`.
        encoder: the model files and the checkpoint by name.
        width: of the encoder's output.
        device: where all of them run.
    """
    for system in served:
        version = root / system.model / "1"
        version.parent.mkdir(parents=True)
        if system.name in {OURS_PACKED, OURS_BOUNDED, OURS_INLINE}:
            version.symlink_to(encoder[CHECKPOINT].resolve(), target_is_directory=True)
        elif system.name == CPP_ONNX:
            version.mkdir()
            with_mask_inside(encoder[ONNX_FILE], version / ONNX_FILE)
        else:
            version.mkdir()
            file = _FILES.get(system.name, ENGINES[engine])
            (version / file).symlink_to(encoder[file].resolve())
        if not (system.ours or system.name == CPP_ONNX):
            shutil.copy(SOURCES / f"{system.name}.py", version / "model.py")
            shutil.copy(SOURCES / "forward.py", version)
        (root / system.model / "config.pbtxt").write_text(_config(system, engine, width, device))


def _config(system: System, engine: str, width: int, device: str) -> str:
    ours = system.ours
    backend = "ge" if ours else "onnxruntime" if system.name == CPP_ONNX else "python"
    text = _CONFIG.format(backend=backend, instances=system.instances, width=width)
    if system.name != "one_forward":
        bound = f"preferred_batch_size: [ {system.preferred} ]" if system.preferred else ""
        text += _BATCHING.format(preferred=bound)
    if ours:
        parameters = {
            "buckets.rows": "1,2,4,8,16",
            "buckets.sequence": "16,32,64,128,256",
            "precision": "bf16" if engine.endswith("bf16") else "origin",
            "device": device,
            **({"engine": "openvino"} if system.name == OURS_OPENVINO else {}),
            **({"executor": "inline"} if system.name == OURS_INLINE else {}),
        }
    elif system.name == CPP_ONNX:
        parameters = {"intra_op_thread_count": str(system.threads)}
    else:
        parameters = {"engine": engine, "threads": str(system.threads), "device": device}
    return text + parameter_lines(parameters)
