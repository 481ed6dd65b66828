"""What outlives a server: what was measured and found out, and the traffic; one small file each.

Costs are kept under a key that names everything they depend on, so a second start need not measure
again. Traffic is kept per model; instances of one model add into one file, under a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ge_backend.errors import ConfigError
from ge_backend.shapes.buckets.grid import Bucket
from ge_backend.shapes.traffic.histogram import (
    DAMAGED,
    SizeHistogram,
    dump_histograms,
    load_histograms,
)

__all__ = ["Store"]

log = logging.getLogger(__name__)

_Kept = TypeVar("_Kept")

VERSION = 2
# What reading raises where nothing has been kept. A folder that may not be entered is another case.
NOTHING_THERE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of small files; with None nothing is kept.

    A folder that cannot be written costs a warning for each file, never a request.
    """

    directory: Path | None
    _logged: set[tuple[Path, int | None]] = field(init=False, default_factory=set, compare=False)

    def costs(self, key: Sequence[str]) -> dict[Bucket, float]:
        """Return the costs kept under a key, nanoseconds by bucket; empty when there are none."""

        def taken(document: Any) -> dict[Bucket, float]:
            known = document["version"] == VERSION and document["key"] == list(key)
            return _checked(document["costs"]) if known else {}

        return self._read("costs", key, taken) or {}

    def keep_costs(self, key: Sequence[str], costs: Mapping[Bucket, float]) -> None:
        """Keep costs under a key, in place of those before."""
        table = [[list(bucket), cost] for bucket, cost in sorted(costs.items())]
        self._keep("costs", key, {"version": VERSION, "key": list(key), "costs": table})

    def findings(self, key: Sequence[str]) -> Any:
        """Return what was found out about a model under a key, as JSON has it; None if nothing."""
        return self._read("findings", key, lambda kept: kept)

    def keep_findings(self, key: Sequence[str], document: object) -> None:
        """Keep what was found out about a model."""
        self._keep("findings", key, document)

    def traffic_path(self, model: str) -> Path | None:
        """Return the file that holds a model's traffic."""
        return None if self.directory is None else self.directory / "traffic" / f"{model}.json"

    def traffic(self, model: str) -> dict[str, SizeHistogram]:
        """Return what sizes a model's traffic has had, by axis.

        Raises:
            ConfigError: the file cannot be read, or is something else.
        """
        path = self.traffic_path(model)
        if path is None:
            return {}
        try:
            text = path.read_text(encoding="utf-8")
        except NOTHING_THERE:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"traffic {path} cannot be read: {error}") from error
        return load_histograms(text, str(path))

    def add_traffic(self, model: str, fresh: Mapping[str, SizeHistogram]) -> None:
        """Add what was counted since the last call; a file that is something else is replaced."""
        path = self.traffic_path(model)
        if path is None:
            return
        with self._locked(path) as possible:
            if not possible:
                return
            try:
                whole = self.traffic(model)
            except ConfigError as error:
                log.warning("%s", error)
                whole = {}
            for axis, histogram in fresh.items():
                whole.setdefault(axis, SizeHistogram()).merge(histogram)
            self._write(path, dump_histograms(whole))

    def _read(self, kind: str, key: Sequence[str], taken: Callable[[Any], _Kept]) -> _Kept | None:
        """Return what is taken out of a document; None where there is none, or none of use."""
        path = self._path(kind, key)
        try:
            return None if path is None else taken(json.loads(path.read_text(encoding="utf-8")))
        except NOTHING_THERE:
            return None
        except (OSError, *DAMAGED) as error:
            log.warning("%s in %s are not used: %r", kind, path, error)
            return None

    def _keep(self, kind: str, key: Sequence[str], document: object) -> None:
        self._write(self._path(kind, key), json.dumps(document))

    def _path(self, kind: str, key: Sequence[str]) -> Path | None:
        if self.directory is None:
            return None
        digest = hashlib.sha256("\n".join(key).encode()).hexdigest()[:32]
        return self.directory / kind / f"{digest}.json"

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[bool]:
        """Hold the lock beside a file; False when the folder cannot be written."""
        descriptor = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            possible = True
        except OSError as error:
            self._warn(path, error)
            possible = False
        try:
            yield possible
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _write(self, path: Path | None, text: str) -> None:
        """Replace a file whole, so that a reader never sees half of it."""
        if path is None:
            return
        draft = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
            draft = Path(name)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            draft.replace(path)
        except OSError as error:
            self._warn(path, error)
            if draft is not None:
                draft.unlink(missing_ok=True)

    def _warn(self, path: Path, error: OSError) -> None:
        """Say that a file cannot be kept; once for each cause, as traffic goes on."""
        cause = (path, error.errno)
        if cause not in self._logged:
            self._logged.add(cause)
            log.warning("%s is not kept: %s; set GE_CACHE_DIR to a folder of yours", path, error)


def _checked(table: list[tuple[list[int], float]]) -> dict[Bucket, float]:
    """Return a table of costs; the planner takes only finite ones, one kind of bucket."""
    costs = {tuple(map(int, bucket)): float(cost) for bucket, cost in table}
    if len(set(map(len, costs))) > 1 or not all(0 < cost < math.inf for cost in costs.values()):
        raise ValueError("a bucket or a cost is out of range")
    return costs
