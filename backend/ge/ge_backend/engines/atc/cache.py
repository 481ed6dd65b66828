"""Compiled models, kept by what they were made from.

An entry is a folder: the compiled file, and `made.json`, which says from what it was made and which
bytes it must have. The name of the folder is the SHA-256 of what it was made from, so that nothing
has to be compared or invalidated. It is filled beside its place and renamed as a whole; one process
at a time makes an entry, the others wait and find it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError

__all__ = ["CompileCache", "Compiled", "file_digest"]

log = logging.getLogger(__name__)

FOLDER = "compiled"
MADE = "made.json"
VERSION = 1  # of entries; others are not found
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One entry.

    Attributes:
        path: the compiled file; it stays where it is until someone deletes the cache.
        title: what a person calls it.
        nbytes: its size.
        sha256: of its content.
        seconds: how long it took to compile.
        recipe: what it was made from.
        fresh: whether it was made just now rather than found.
    """

    path: Path
    title: str
    nbytes: int
    sha256: str
    seconds: float
    recipe: Mapping[str, Any]
    fresh: bool = False


class CompileCache:
    """The compiled models of a folder.

    Args:
        folder: the backend's cache folder (GE_CACHE_DIR); what is made goes into a folder in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def find_or_make(
        self, recipe: Mapping[str, Any], make: Callable[[Path], Path], *, title: str
    ) -> Compiled:
        """Return the entry for a recipe; make it if there is none, or none that is whole.

        An entry that is there is taken without a lock, so the folder may be read-only then.

        Args:
            recipe: everything that the result depends on, in JSON's types.
            make: makes the file in the empty folder that it is given, and returns where it is.
                After an error of its there is no entry.
            title: what a person calls it; two titles of one recipe are one entry.

        Raises:
            ConfigError: the folder cannot be used.
        """
        key = _key(recipe)
        found = _whole(self.folder / key)
        if found is not None:
            return found
        with self._locked(key):
            found = _whole(self.folder / key)
            return found or self._make(key, recipe, make, title)

    def entries(self) -> list[Compiled]:
        """Return what is in the cache, by their names; contents are not checked."""
        found = (_stated(path.parent) for path in sorted(self.folder.glob(f"[!.]*/{MADE}")))
        return [entry for entry in found if entry is not None]

    def _make(
        self, key: str, recipe: Mapping[str, Any], make: Callable[[Path], Path], title: str
    ) -> Compiled:
        with _writable(self.folder):
            self._remove(key)
            scratch = Path(tempfile.mkdtemp(dir=self.folder, prefix=f".{key}-"))
        try:
            work, draft = scratch / "work", scratch / "entry"
            work.mkdir()
            draft.mkdir()
            started = time.monotonic()
            made = make(work)
            seconds = time.monotonic() - started
            with _writable(self.folder):
                file = made.replace(draft / made.name)
                compiled = Compiled(
                    path=self.folder / key / file.name,
                    title=title,
                    nbytes=file.stat().st_size,
                    sha256=file_digest(file),
                    seconds=round(seconds, 3),
                    recipe=recipe,
                    fresh=True,
                )
                _state(compiled, draft / MADE)
                draft.rename(self.folder / key)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return compiled

    def _remove(self, key: str) -> None:
        """Remove an entry that is not whole, and what processes left that were killed over it."""
        for path in (self.folder / key, *self.folder.glob(f".{key}-*")):
            if path.exists():
                log.info("removing %s: it is not whole", path)
                shutil.rmtree(path)

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the lock of an entry; the kernel releases it however its holder ends."""
        with _writable(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{key}.lock"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("waiting for another process that compiles the same")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _key(recipe: Mapping[str, Any]) -> str:
    text = json.dumps({"version": VERSION, "recipe": recipe}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _state(compiled: Compiled, path: Path) -> None:
    statement = {
        "title": compiled.title,
        "file": compiled.path.name,
        "nbytes": compiled.nbytes,
        "sha256": compiled.sha256,
        "seconds": compiled.seconds,
        "recipe": compiled.recipe,
    }
    path.write_text(json.dumps(statement, indent=2) + "\n", encoding="utf-8")


def _stated(entry: Path) -> Compiled | None:
    """Return what an entry says of itself; None if there is none, or it belongs elsewhere."""
    try:
        statement = json.loads((entry / MADE).read_text(encoding="utf-8"))
        compiled = Compiled(
            path=entry / str(statement["file"]),
            title=str(statement["title"]),
            nbytes=int(statement["nbytes"]),
            sha256=str(statement["sha256"]),
            seconds=float(statement["seconds"]),
            recipe=statement["recipe"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return compiled if _key(compiled.recipe) == entry.name else None


def _whole(entry: Path) -> Compiled | None:
    """Return an entry whose file has every byte that it says it has."""
    compiled = _stated(entry)
    try:
        if compiled is None or file_digest(compiled.path) != compiled.sha256:
            return None
    except OSError:
        return None
    return compiled


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"compiled models cannot be kept in {folder}: {error}; set GE_CACHE_DIR to a folder "
            "that can be written and has room"
        ) from error
