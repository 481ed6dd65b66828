"""Executors inside this process, and sessions with them."""

import pytest

from builders.bench import Bench
from builders.null_models import write_null


@pytest.fixture
def bench(tmp_path):
    bench = Bench(write_null(tmp_path / "model.null"))
    yield bench
    bench.close()


@pytest.fixture
def session(bench):
    return bench.session()
