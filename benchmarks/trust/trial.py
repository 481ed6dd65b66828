"""One fault under load, and what came of it in figures."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.trust.faults import Fault
from benchmarks.trust.load import MODEL, Answer, Load
from ge_backend.tritonserver import ServerOptions, TritonServer, find_server
from ge_backend.tritonserver.api import ServerApi
from ge_backend.tritonserver.healer import Healer

__all__ = ["Figures", "figures_of", "serving", "tried"]

CONFIG = """
backend: "ge"
max_batch_size: 8
dynamic_batching { }
parameters { key: "device" value { string_value: "null" } }
"""
# Sums the rows; a run takes 5 ms.
GRAPH = {
    "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
    "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
    "cost_ms": {"*": 5},
}
CONTROL = ("--model-control-mode=explicit", "--load-model=*")
# A gap between right answers that counts: shorter ones are what a busy machine has anyway.
GAP_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What became of the requests that were sent while something went wrong.

    Attributes:
        recovery_s: the longest time without a right answer; 0 if it is not worth mentioning.
        longest_s: the longest that a request took.
    """

    name: str
    requests: int
    right: int
    errors: int
    lost: int
    wrong: int
    recovery_s: float
    longest_s: float


@contextlib.contextmanager
def serving(parameters: str = "") -> Iterator[TritonServer]:
    """Serve the model, with further parameters, and look after it as `ge-backend serve` does."""
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / MODEL / "1"
        version.mkdir(parents=True)
        (version / "model.null").write_text(json.dumps(GRAPH))
        (version.parent / "config.pbtxt").write_text(CONFIG + parameters)
        options = ServerOptions(
            repositories=(Path(folder),),
            log_file=Path(folder) / "server.log",
            arguments=CONTROL,
            exit_timeout_s=3,
        )
        with TritonServer(find_server(), options) as server:
            api = ServerApi(server.options.local_host, server.options.http_port)
            with contextlib.closing(Healer(api, server.pid, server.directory.run, _say_nothing)):
                yield server


def tried(fault: Fault, *, clients: int, before_s: float, after_s: float) -> Figures:
    """Return what comes of a fault, on a server of its own."""
    with serving(fault.parameters) as server:
        load = Load(server.grpc, clients, timeout_us=fault.timeout_us)
        time.sleep(before_s)
        fault.strike(server)
        time.sleep(after_s)
        return figures_of(fault.name, load.close())


def figures_of(name: str, answers: Sequence[Answer]) -> Figures:
    """Return the figures of a table's row."""
    counts = Counter(answer.outcome for answer in answers)
    right = sorted(answer.done_s for answer in answers if answer.outcome == "right")
    gap_s = max((b - a for a, b in itertools.pairwise(right)), default=0.0)
    return Figures(
        name=name,
        requests=len(answers),
        right=counts["right"],
        errors=counts["error"],
        lost=counts["lost"],
        wrong=counts["wrong"],
        recovery_s=gap_s if gap_s > GAP_S else 0.0,
        longest_s=max((answer.took_s for answer in answers), default=0.0),
    )


def _say_nothing(text: str) -> None:
    del text
