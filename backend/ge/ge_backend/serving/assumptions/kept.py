"""What is found out is kept under all that it depends on, so that a second start finds it."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from ge_backend.errors import ProtocolError
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.codec import Codec
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.files.model_file import model_files
from ge_backend.serving.assumptions.samples import sample_files
from ge_backend.serving.warmup.measure import fingerprint, processor_kind
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import Verdict

__all__ = ["VERDICT", "keep", "kept", "kept_key", "remembered"]

log = logging.getLogger(__name__)


class _Finding(Protocol):
    @property
    def late(self) -> bool: ...


_Found = TypeVar("_Found")
_Finished = TypeVar("_Finished", bound=_Finding)

VERDICT = Codec((Verdict,))
# Findings of another way to test are not used.
TEST_VERSION = "tested 7"


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
        processor_kind(),
        *map(str, more),
        TEST_VERSION,
    ]


def remembered(
    store: Store, key: Sequence[str], codec: Codec[_Finished], find: Callable[[], _Finished]
) -> _Finished:
    """Return what is kept under a key, or what `find` finds out, which is kept if it had time."""
    found = kept(store, key, codec)
    if found is None:
        found = find()
        if not found.late:
            keep(store, key, codec, found)
    return found


def kept(store: Store, key: Sequence[str], codec: Codec[_Found]) -> _Found | None:
    """Return what is kept under a key; None if nothing, or what cannot be read."""
    document = store.findings(key)
    try:
        return None if document is None else codec.decode(json.dumps(document).encode())
    except ProtocolError as error:
        log.warning("findings of an earlier start are not used: %s", error)
        return None


def keep(store: Store, key: Sequence[str], codec: Codec[_Found], found: _Found) -> None:
    """Keep what was found out under a key, as JSON."""
    store.keep_findings(key, json.loads(codec.encode(found)))


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
