"""The parent's end of a load generator process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import final

from benchmarks.harness.generator import Order, Report
from benchmarks.harness.pool import Pool, save_pools

__all__ = ["BenchmarkError", "LoadProcess"]


class BenchmarkError(Exception):
    """A run that says nothing: wrong answers, failed requests, or a load generator that ended."""


@final
class LoadProcess:
    """A running load generator; one order at a time.

    Args:
        pools: what can be sent, by name.
    """

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ge-load-")
        path = Path(self._folder.name) / "pools"
        save_pools(pools, path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.generator", f"--pools={path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> LoadProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process; its connections must be closed before the server stops."""
        if error is not None:
            self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def measure(self, order: Order) -> Report:
        """Run one window.

        Raises:
            BenchmarkError: a request failed, or an answer was wrong.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise BenchmarkError("the load generator has no pipes")
        print(json.dumps(asdict(order)), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError("the load generator ended; its traceback is above")
        report = Report(**json.loads(line))
        if report.errors:
            raise BenchmarkError(f"{order.pool}: {'; '.join(report.errors)}")
        return report
