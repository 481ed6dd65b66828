"""The server that things go wrong on: a model that computes nothing but sums, and takes 5 ms."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import model_folder
from benchmarks.trust.load import MODEL
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server
from ge_tools.tritonserver.model_reloader import ModelReloader

__all__ = ["serving", "write_model"]

# Without ragged batches only requests of one length would share a batch, which is hardly ever two.
CONFIG = """
backend: "ge"
max_batch_size: 8
dynamic_batching { }
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
parameters { key: "device" value { string_value: "null" } }
"""
# Sums the rows; a run takes 5 ms.
GRAPH = {
    "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
    "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
    "cost_ms": {"*": 5},
}
CONTROL = ("--model-control-mode=explicit", "--load-model=*")
# The null device of the tests: its runs fail, its memory runs out.
NULL_PYTHON = Path(__file__).parents[2] / "tests" / "fakes" / "null_python" / "python"
FAULTY = {"GE_PYTHON": str(NULL_PYTHON), "TEST_PYTHON": sys.executable}
NOTHING: Mapping[str, object] = {}
NO_VARIABLES: Mapping[str, str] = {}


def write_model(repository: Path, name: str, parameters: str = "", **graph: object) -> None:
    """Write a model that sums the rows, with further parameters and settings of the null device."""
    model_folder.write_model(repository / name, CONFIG + parameters, graph={**GRAPH, **graph})


@contextlib.contextmanager
def serving(
    parameters: str = "",
    graph: Mapping[str, object] = NOTHING,
    environment: Mapping[str, str] = NO_VARIABLES,
) -> Iterator[TritonServer]:
    """Serve the model, with further settings, and look after it as `ge-backend serve` does."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), MODEL, parameters, **graph)
        options = ServerOptions(
            repositories=(Path(folder),),
            log_file=Path(folder) / "server.log",
            arguments=CONTROL,
            environment={**FAULTY, **environment},
            exit_timeout_s=3,
        )
        with TritonServer(find_server(), options) as server:
            api = server.options.api
            with contextlib.closing(
                ModelReloader(api, server.pid, server.directory.run, _say_nothing)
            ):
                yield server


def _say_nothing(text: str) -> None:
    del text
