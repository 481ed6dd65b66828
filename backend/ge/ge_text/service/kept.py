"""How far a checkpoint in eight bits is from itself in full: found once, kept from then on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ge_backend.model.config.model import MachineConfig
from ge_backend.serving.warmup.measure import fingerprint, processor_kind, release_of
from ge_backend.serving.warmup.store import Store

__all__ = ["kept_nearness"]

# Figures of another text, or of another way to make weights of eight bits, are not used.
MEASURE_VERSION = "nearness 1"


def kept_nearness(files: Sequence[Path], measure: Callable[[], float]) -> float:
    """Return the divergence that is kept for a checkpoint, in nats, or what is measured and kept.

    It is kept in `GE_CACHE_DIR`, by the content of the checkpoint's files, whatever their folder,
    by the release of OpenVINO and by the processor, which may have BF16 or not.
    """
    store = Store(MachineConfig.read(os.environ, owner_pid=os.getppid()).cache_dir)
    key = [*map(fingerprint, files), release_of("openvino"), processor_kind(), MEASURE_VERSION]
    kept = store.findings(key)
    if isinstance(kept, float):
        return kept
    figure = measure()
    store.keep_findings(key, figure)
    return figure
