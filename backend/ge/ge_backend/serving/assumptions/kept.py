"""What findings depend on: they are kept under it, so that a second start finds them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from ge_backend.executor.client.session import Session
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.files.model_file import model_files
from ge_backend.serving.assumptions.samples import sample_files
from ge_backend.serving.warmup.measure import fingerprint
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import Verdict

__all__ = ["kept_key", "kept_verdict", "release_of"]

# Findings of another way to test are not used.
RULE = "tested 5"


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


def kept_verdict(store: Store, key: Sequence[str], test: Callable[[], Verdict]) -> Verdict:
    """Return the verdict that is kept under a key, or the one of a test, which is kept then."""
    kept = store.findings(key)
    if kept is not None:
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            return Verdict.of_json(kept)
    verdict = test()
    store.keep_findings(key, verdict.as_json())
    return verdict


def release_of(library: str) -> str:
    """Return what tells the installed release of a library from others; "" where there is none."""
    spec = find_spec(library)
    return fingerprint(Path(spec.origin)) if spec and spec.origin else ""


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
