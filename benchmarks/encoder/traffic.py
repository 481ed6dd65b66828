"""The encoder's files, the sequences that are sent, and what is right for every 16th."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.encoder.mixes import MIXES, draw
from benchmarks.encoder.systems import CHECKPOINT, ONNX_FILE, QUANTISED_FILE, WIDTH
from benchmarks.harness.pool import CHECK_EVERY, Pool
from benchmarks.harness.report import ROOT
from benchmarks.harness.requests import http_request
from benchmarks.harness.turns import System
from benchmarks.rivals.forward import ENGINES, Ids, Rows, load_forward

__all__ = ["MINILM", "Encoder", "Sequences", "load_encoder", "pools_of", "sequences"]

MINILM = "all-MiniLM-L6-v2"
POOL_ROWS = 1024
# Largest difference of an element from the float32 truth, for a precision and a kind of rival: a
# text's answer to another text is 0.2 away.
TOLERANCES = {"fp32": 1e-4, "bf16": 1e-2, "int8": 1e-1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """An encoder's files and its checkpoint's folder by name, and its output's width."""

    files: Mapping[str, Path]
    width: int = WIDTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """One traffic: INT64 [length] each, and FP32 [width] by position for every 16th."""

    rows: Sequence[Ids]
    answers: Mapping[int, Rows]


def load_encoder(name: str, folder: Path) -> Encoder:
    """Return an encoder; a bare machine has no package of the real one.

    Args:
        name: `MINILM`, or a size of `random_encoder.SIZES`.
        folder: for the files.
    """
    program = ENGINES["torch"]
    if name != MINILM:
        from benchmarks.random_encoder import write_encoder  # noqa: PLC0415

        width = write_encoder(name, folder)
        return Encoder(
            files={program: folder / program, CHECKPOINT: folder / CHECKPOINT}, width=width
        )
    from demo.encoder import prepare  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    real = prepare(ROOT / ".cache" / "encoder", Console(stderr=True))
    quantised = real.onnx.with_name(QUANTISED_FILE)
    if not quantised.is_file():
        _quantise(real.onnx, quantised)
    files = {ONNX_FILE: real.onnx, QUANTISED_FILE: quantised, program: real.program}
    return Encoder(files={**files, CHECKPOINT: real.checkpoint})


def _quantise(source: Path, target: Path) -> None:
    """Write what ONNX Runtime's own tool makes of a file: weights of 8 bits by channel."""
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415

    draft = target.with_suffix(".draft")
    quantize_dynamic(str(source), str(draft), weight_type=QuantType.QInt8, per_channel=True)
    draft.rename(target)


def sequences(encoder: Encoder, mixes: Sequence[str], seed: int) -> dict[str, Sequences]:
    """Return each mix's sequences with the answers of the plain engine, alone and unpadded."""
    engine = "onnx" if ONNX_FILE in encoder.files else "torch"
    threads = 1 if engine == "onnx" else os.cpu_count() or 1
    forward = load_forward(engine, encoder.files[ENGINES[engine]], threads)
    found = {}
    for mix in mixes:
        rows = draw(MIXES[mix], POOL_ROWS, seed)
        answers = {
            at: forward(rows[at][None], np.ones((1, len(rows[at])), np.int64))[0]
            for at in range(0, len(rows), CHECK_EVERY)
        }
        found[mix] = Sequences(rows=rows, answers=answers)
    return found


def pools_of(
    systems: Sequence[System], drawn: Mapping[str, Sequences], precision: str
) -> dict[str, Pool]:
    """Return a pool for each system and mix."""
    return {
        f"{system.model}/{mix}": Pool(
            scripts=tuple(
                (http_request(system.model, {"input_ids": row[None]}),) for row in given.rows
            ),
            answers=given.answers,
            tolerance=TOLERANCES[precision],
        )
        for system in systems
        for mix, given in drawn.items()
    }
