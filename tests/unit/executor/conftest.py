"""Executors inside this process, and sessions with them."""

import pytest

from builders.bench import Bench
from builders.null_models import write_null
from fakes.counting_service import KINDS, CountingService
from fakes.null_device import NullDevice
from ge_backend.executor.server.executor import Executor


@pytest.fixture
def bench(tmp_path):
    bench = Bench(write_null(tmp_path / "model.null"))
    yield bench
    bench.close()


@pytest.fixture
def session(bench):
    return bench.session()


@pytest.fixture
def executor():
    """One whose services count; nothing is left of them."""
    CountingService.opened.clear()
    executor = Executor(NullDevice(), linger_s=0.0, kinds=KINDS)
    yield executor
    executor.join()
    executor.close()
    assert len(executor.services) == 0
