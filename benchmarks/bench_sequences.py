"""Steps per second of live sequences: ours against a Python model with a dict of states.

Every live sequence sends its next step when the last one is answered. Each model has one instance
and two, and ours its executor in the stub's own process, too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.harness import compare
from benchmarks.harness.aims import Aims
from benchmarks.harness.pool import CHECK_EVERY, Pool
from benchmarks.harness.requests import Array, http_request
from benchmarks.harness.turns import System
from benchmarks.model_folder import write_model
from benchmarks.recurrent import FEATURES, write_step

__all__ = ["SYSTEMS", "main", "scenario"]

OURS = {"ge_2": 2, "ge_1": 1, "ge_inline_2": 2, "ge_inline": 1}
RIVAL = {"state_dict_2": 2, "state_dict_1": 1}
SYSTEMS = (
    *(System(name=name, model=name, ours=True) for name in OURS),
    *(System(name="state_dict", model=name, layout=str(n)) for name, n in RIVAL.items()),
)
TRAFFIC = "steps"
STEP = "model.onnx"
STEPS = 50  # of one sequence, from its start to its end
SCRIPTS = 512  # more than are ever live, so that no two live ones have the same id
AIMS = Aims(least={1: 1.0, 16: 1.0, 64: 1.3})
CONFIG = """\
backend: "{backend}"
max_batch_size: 32
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {features} ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {hidden} ] }} ]
instance_group [ {{ count: {instances} kind: KIND_CPU }} ]
sequence_batching {{
  oldest {{ max_candidate_sequences: 512 max_queue_delay_microseconds: 100 }}
  max_sequence_idle_microseconds: 60000000
  {state}
}}
"""
STATE = 'state [ {{ input_name: "h" output_name: "h_next" data_type: TYPE_FP32 dims: [ {} ] }} ]'


def main() -> None:
    """Run it and print the table."""
    parser = compare.parser("bench_sequences", __doc__, [1, 16, 64, 256])
    parser.add_argument("--hidden", type=int, default=256, help="size of the network's state")
    options = parser.parse_args(sys.argv[1:])
    compare.run(lambda folder: scenario(folder, options.hidden), options)


def scenario(folder: Path, hidden: int = 256) -> compare.Scenario:
    """Write all models on the same step, and return the comparison."""
    repository = folder / "models"
    for name, instances in {**OURS, **RIVAL}.items():
        backend = "ge" if name in OURS else "python"
        state = STATE.format(hidden) if backend == "ge" else ""
        text = CONFIG.format(
            backend=backend, instances=instances, features=FEATURES, hidden=hidden, state=state
        )
        parameters = {"executor": "inline"} if "inline" in name else {}
        code = ["state_dict"] if backend == "python" else []
        write_step(write_model(repository / name, text, parameters, code=code) / STEP, hidden)
    last = _last_answer(repository / "ge_1" / "1" / STEP, hidden)
    return compare.Scenario(
        name="sequences",
        repository=repository,
        systems=SYSTEMS,
        pools=lambda _: {f"{s.model}/{TRAFFIC}": _pool(s.model, last) for s in SYSTEMS},
        traffic=[TRAFFIC],
        aims=AIMS,
    )


def _given(number: int) -> Array:
    """Return the input of a sequence's step: FP32 [1, 64]."""
    return np.full((1, FEATURES), number % 7, np.float32)


def _last_answer(path: Path, hidden: int) -> Array:
    """Return what the last step answers, by the plain engine alone: FP32 [hidden]."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    state = np.zeros((1, hidden), np.float32)
    for number in range(STEPS):
        answer, state = session.run(["y", "h_next"], {"x": _given(number), "h": state})
    last: Array = answer[0]
    return last


def _pool(model: str, last: Array) -> Pool:
    scripts = tuple(
        tuple(
            http_request(
                model,
                {"x": _given(number)},
                ["y"],
                {
                    "sequence_id": sequence,
                    "sequence_start": number == 0,
                    "sequence_end": number == STEPS - 1,
                },
            )
            for number in range(STEPS)
        )
        for sequence in range(1, SCRIPTS + 1)
    )
    checked = dict.fromkeys(range(0, SCRIPTS, CHECK_EVERY), last)
    return Pool(scripts=scripts, answers=checked, tolerance=1e-4)


if __name__ == "__main__":
    main()
