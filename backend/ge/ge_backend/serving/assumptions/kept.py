"""What findings depend on: they are kept under it, so that a second start finds them."""

from __future__ import annotations

import functools
from pathlib import Path

from ge_backend.executor.client.session import Session
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.files.model_file import model_files
from ge_backend.serving.assumptions.samples import sample_files
from ge_backend.serving.warmup.measure import fingerprint

__all__ = ["kept_key"]

# Findings of another way to test are not used.
RULE = "tested 4"


def kept_key(config: ModelConfig, session: Session, *more: object) -> list[str]:
    """Return everything that findings about a graph depend on.

    Args:
        config: the model's; what it says of tensors the caller adds.
        session: with the engine that was tested.
        more: whatever else they depend on.
    """
    source = session.source
    return [
        *_content(source.path, source.stamp),
        source.precision,
        session.engine,
        str(source.options),
        str(sorted(config.assume)),
        *map(_stamp, sample_files(config)),
        str(config.warmup_samples),
        *map(str, more),
        RULE,
    ]


@functools.lru_cache(maxsize=8)
def _content(path: str, stamp: str) -> tuple[str, ...]:
    """Return what tells a model's files apart, read once for as long as their stamp stays."""
    del stamp
    return tuple(map(fingerprint, model_files(Path(path))))


def _stamp(path: Path) -> str:
    try:
        return fingerprint(path)
    except OSError:  # as good as none: its reader says so
        return ""
