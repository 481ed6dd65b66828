"""Whether weights of eight bits give the answers of the full ones, as nearly as is worth serving.

A model is opened in both, at its first start, and both answer the same inputs, those that engines
are compared by. Where a row's direction is another one, the model is served in the next precision.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from ge_backend.errors import GeError
from ge_backend.executor.client.session import Session
from ge_backend.model.config.model import ModelConfig
from ge_backend.serving.assumptions.comparison import apart
from ge_backend.serving.assumptions.engine import Compared, Reference, compared
from ge_backend.serving.assumptions.kept import kept_key
from ge_backend.serving.assumptions.lengths import Lengths
from ge_backend.serving.assumptions.served import Served, served, with_verdict
from ge_backend.serving.assumptions.trial import Untestable
from ge_backend.serving.warmup.measure import release_of
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import FAILS, HOLDS, Verdict
from ge_backend.tensors import Array, TensorSpec, bf16_to_float32

__all__ = ["cosine", "in_precision"]

# What a model is served in whose answers in a precision are too far from those of its file.
NEXT: Mapping[str, str] = {"int8": "bf16"}
# Of a row of answers and the same one in full. docs/precision.md has what encoders reach.
MIN_COSINE = 0.99
# Shorter rows are scores, and no directions: they are compared number by number, as a part of the
# largest one.
MIN_WIDTH, SCORES = 16, 0.1
HOW = "one row and unequal rows, short and beyond 256, beside the file's own precision"


def in_precision(
    config: ModelConfig,
    session: Session,
    store: Store,
    reference: Reference,
    reopened: Callable[[ModelConfig], Session],
) -> tuple[ModelConfig, Session, Served]:
    """Return a model in the precision that it is to be served in: its own, or the next that holds.

    Args:
        config: complete.
        session: with its graph, and nothing else in flight.
        store: keeps what is found.
        reference: opens the graph in another precision to compare with; closed here.
        reopened: opens the model in the next precision, in place of this session.

    Returns:
        The configuration with that precision, its session, and what was found out about it.
    """
    judged = _with_verdict(config, session, store, served(config, session, store), reference)
    if not (judged.fails("precision") and config.precision in NEXT):
        return config, session, judged
    former = [verdict for verdict in judged.verdicts if verdict.assumption == "precision"]
    config = replace(config, precision=NEXT[config.precision])
    session = reopened(config)
    judged = served(config, session, store)
    return config, session, replace(judged, verdicts=(*judged.verdicts, *former))


def _with_verdict(
    config: ModelConfig, session: Session, store: Store, judged: Served, reference: Reference
) -> Served:
    """Return what was found out, with the verdict on a precision of eight bits."""
    if session.precision not in NEXT or session.engine != "openvino":
        return judged

    def test(lengths: Lengths) -> Verdict:
        try:
            full = reference(session.engine, "origin")
        except GeError as error:
            raise Untestable(f"it does not open in full: {error}") from error
        with contextlib.closing(full):
            return _verdict(config, compared(config, session, judged, lengths), full)

    more = (judged.layout, judged.findings.lengths, release_of(session.engine))
    key = kept_key(config, session, "precision", *more, MIN_COSINE)
    return with_verdict(judged, "precision", config, store, key, test)


def cosine(expected: Array, found: Array) -> float:
    """Return the least cosine between rows of two arrays, along the last axis.

    Rows of zeros count where only one of two is; so do numbers that are not finite.
    """
    one, other = (each.reshape(-1, each.shape[-1]).astype(np.float64) for each in (expected, found))
    lengths = np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = np.einsum("rw,rw->r", one, other) / (lengths[0] * lengths[1])
    cosines[(lengths[0] == 0) & (lengths[1] == 0)] = 1
    return float(np.nan_to_num(cosines, nan=-1.0).min(initial=1.0))


def _verdict(config: ModelConfig, comparison: Compared, full: Session) -> Verdict:
    least, worst, common = 1.0, 0.0, 0
    for expected, found in comparison.answers(full):
        common += 1
        comparison.trial.extend()  # the model's owner asks for it, once
        least = min(least, _least(comparison.outputs, expected, found))
        scores = [one for one in comparison.outputs if not _is_vector(one, expected[one.name])]
        worst = max(worst, apart(expected, found, scores, math.inf)[0])
    if not common:
        raise Untestable("it takes none of the made-up inputs in full")
    holds = least >= MIN_COSINE and worst <= SCORES
    figure = f"cosine {least:.4f}" + (f", scores off by {worst:.2g}" if worst else "")
    then = (
        f"expected a cosine of {MIN_COSINE:g} or more, scores off by {SCORES:g} or less; served "
        f"in {NEXT[config.precision]!r}; the parameter 'assume: precision' keeps it"
    )
    return Verdict(
        assumption="precision",
        tested=HOW,
        figure=figure,
        verdict=HOLDS if holds else FAILS,
        consequence="" if holds else then,
    )


def _least(
    outputs: Iterable[TensorSpec], expected: Mapping[str, Array], found: Mapping[str, Array]
) -> float:
    """Return the least cosine of outputs that are directions; 1 where none is."""
    pairs = [
        (expected[one.name], found[one.name])
        for one in outputs
        if _is_vector(one, expected[one.name])
    ]
    wide = [tuple(map(_wide, pair)) for pair in pairs]
    return min((cosine(*pair) for pair in wide), default=1.0)


def _is_vector(spec: TensorSpec, array: Array) -> bool:
    real = spec.dtype.name in ("FP32", "FP16", "BF16")
    return real and array.ndim > 1 and array.shape[-1] >= MIN_WIDTH


def _wide(array: Array) -> Array:
    return bf16_to_float32(array) if array.dtype.kind == "u" else array
