"""The systems under test as one model repository: our backend and its rivals, on one engine.

`ge_packed` and `packed` run the encoder's checkpoint in torch without padding, whatever the engine
of the others is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rivals.forward import ENGINES

__all__ = ["CHECKPOINT", "OURS", "OURS_PACKED", "RIVALS", "System", "systems", "write_repository"]

OURS = "ge"
OURS_PACKED = "ge_packed"
RIVALS = ("one_forward", "pad_longest", "packed")
CHECKPOINT = "checkpoint"
SOURCES = Path(__file__).parent / "rivals"

_CONFIG = """\
backend: "{backend}"
max_batch_size: 32
input [ {{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }} ]
output [ {{ name: "sentence_embedding" data_type: TYPE_FP32 dims: [ 384 ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
"""
# Without a batcher every request is its own call, which is what one forward per request wants: in
# a batch the first answers would wait for the last.
_BATCHING = "dynamic_batching { }\n"
_PARAMETER = 'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One served model.

    Attributes:
        name: `ge`, `ge_packed`, `one_forward`, `pad_longest` or `packed`.
        instances: `instance_group` count.
        threads: CPU threads of one forward pass; 0 leaves it to the system.
    """

    name: str
    instances: int
    threads: int = 0

    @property
    def ours(self) -> bool:
        """Whether our backend serves it."""
        return self.name in (OURS, OURS_PACKED)

    @property
    def model(self) -> str:
        """The name under which it is served."""
        return f"{self.name}_{self.instances}x{self.threads}" if self.threads else self.name


def systems(instances: int, cores: int | None = None) -> tuple[System, ...]:
    """Return our backend, and each rival in both layouts that make sense.

    One instance whose forward pass uses every core is what the engines do unasked; one instance
    per core with one thread each keeps all cores busy without synchronising them. Both are run, and
    in every cell of the report a rival's better one counts.
    """
    cores = cores or os.cpu_count() or 1
    layouts = dict.fromkeys(((1, cores), (cores, 1)))
    return (
        System(name=OURS, instances=instances),
        System(name=OURS_PACKED, instances=instances),
        *(System(name=r, instances=i, threads=t) for r in RIVALS for i, t in layouts),
    )


def write_repository(
    root: Path, served: tuple[System, ...], engine: str, encoder: Mapping[str, Path]
) -> None:
    """Write one model per system; `encoder` holds the model files and the checkpoint by name."""
    for system in served:
        version = root / system.model / "1"
        version.parent.mkdir(parents=True)
        if system.name == OURS_PACKED:
            version.symlink_to(encoder[CHECKPOINT].resolve(), target_is_directory=True)
        else:
            version.mkdir()
            file = CHECKPOINT if system.name == "packed" else ENGINES[engine]
            (version / file).symlink_to(encoder[file].resolve())
        if not system.ours:
            shutil.copy(SOURCES / f"{system.name}.py", version / "model.py")
            shutil.copy(SOURCES / "forward.py", version)
        (root / system.model / "config.pbtxt").write_text(_config(system, engine))


def _config(system: System, engine: str) -> str:
    ours = system.ours
    text = _CONFIG.format(backend="ge" if ours else "python", instances=system.instances)
    if system.name != "one_forward":
        text += _BATCHING
    if ours:
        parameters = {
            "buckets.rows": "1,2,4,8,16",
            "buckets.sequence": "16,32,64,128,256",
            "precision": "bf16" if engine.endswith("bf16") else "origin",
        }
    else:
        parameters = {"engine": engine, "threads": str(system.threads)}
    lines = (_PARAMETER.format(key=key, value=value) for key, value in parameters.items())
    return text + "".join(lines)
