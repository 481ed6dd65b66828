"""One ensemble: fused, also in two instances, as the host's own, and as three client calls.

The ensemble is `text_classifier` of model_repository: tokenizer, encoder, classifier head. Texts
have very different lengths.
"""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import compare
from benchmarks.harness.aims import Aims
from benchmarks.harness.pool import CHECK_EVERY, Pool, Script
from benchmarks.harness.report import ROOT
from benchmarks.harness.requests import Array, asked, connect, http_request
from benchmarks.harness.turns import System
from benchmarks.model_folder import parameter_lines

__all__ = ["STEPS", "SYSTEMS", "draw_texts", "main", "scenario", "scripts", "write_models"]

FUSED, HOST = "text_classifier_fused", "text_classifier"
TWO = {"inline": f"{FUSED}_inline", "process": f"{FUSED}_process"}  # instances, by their executor
CALLS = "three_calls"  # no model of its own
SYSTEMS = (
    System(name="fused", model=FUSED, ours=True),
    *(System(name=f"fused_{name}", model=model, ours=True) for name, model in TWO.items()),
    System(name="host_ensemble", model=HOST),
    System(name=CALLS, model=CALLS),
)
STEPS = ("tokenizer", "text_encoder", "classifier_head")
TRAFFIC = "texts"
WORDS = ("rain", "goal", "soup", "wind", "match", "bread", "cloud", "team", "salt", "storm")
TEXTS = 256
AIMS = Aims(least={1: 1.5, 32: 2.0})


def main() -> None:
    """Run it and print the table."""
    options = compare.parser("bench_fused", __doc__, [1, 32]).parse_args(sys.argv[1:])
    compare.run(lambda folder: scenario(folder, options.seed), options)


def scenario(folder: Path, seed: int = 1) -> compare.Scenario:
    """Write the models and return the comparison."""
    return compare.Scenario(
        name="fused",
        repository=write_models(folder),
        systems=SYSTEMS,
        pools=lambda address: _pools(address, draw_texts(seed)),
        traffic=[TRAFFIC],
        aims=AIMS,
        environment={"GE_WARMUP": "on"},
    )


def write_models(folder: Path) -> Path:
    """Write the models of model_repository, made anew, and the fused one in two instances."""
    repository = folder / "models"
    script = ROOT / "model_repository" / "make.py"
    subprocess.run([sys.executable, str(script), "--into", str(repository)], check=True)
    whole = (repository / FUSED / "config.pbtxt").read_text()
    for executor, name in TWO.items():
        shutil.copytree(repository / FUSED, repository / name)
        two = whole.replace("count: 1", "count: 2") + "\n" + parameter_lines({"executor": executor})
        (repository / name / "config.pbtxt").write_text(two)
    return repository


def draw_texts(seed: int) -> list[str]:
    """Return texts of 1 to 100 words, most of them short."""
    drawn = random.Random(seed)
    counts = [min(100, max(1, round(drawn.lognormvariate(2.2, 0.9)))) for _ in range(TEXTS)]
    return [" ".join(drawn.choices(WORDS, k=count)) for count in counts]


def scripts(sock: socket.socket, text: str) -> tuple[dict[str, Script], Array]:
    """Return what a client sends for a text, by the system's name, and the scores.

    The tensors between the three calls are those that the server answers now.
    """
    sent: list[bytes] = []

    def ask(
        step: str, given: Mapping[str, Array | Sequence[bytes]], names: Sequence[str]
    ) -> list[Array]:
        sent.append(http_request(step, given, names))
        found = asked(sock, sent[-1])
        return [found[name] for name in names]

    ids, mask = ask(STEPS[0], {"text": [text.encode()]}, ["input_ids", "attention_mask"])
    (hidden,) = ask(STEPS[1], {"input_ids": ids, "attention_mask": mask}, ["hidden"])
    (scores,) = ask(STEPS[2], {"hidden": hidden, "attention_mask": mask}, ["scores"])
    found: dict[str, Script] = {
        system.name: (http_request(system.model, {"text": [text.encode()]}, ["scores"]),)
        for system in SYSTEMS
        if system.name != CALLS
    }
    return {**found, CALLS: tuple(sent)}, scores.reshape(-1)


def _pools(address: str, texts: Sequence[str]) -> Mapping[str, Pool]:
    with connect(address) as sock:
        made = [scripts(sock, text) for text in texts]
    answers = {at: made[at][1] for at in range(0, len(made), CHECK_EVERY)}
    return {
        f"{system.model}/{TRAFFIC}": Pool(
            scripts=tuple(each[system.name] for each, _ in made),
            answers=answers,
            tolerance=1e-3,
            whole=True,
        )
        for system in SYSTEMS
    }


if __name__ == "__main__":
    main()
