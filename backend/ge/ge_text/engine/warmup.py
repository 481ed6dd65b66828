"""Makes a model ready before a request waits, and measures what each of its shapes costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ge_text.engine.plan import Shape, ShapeLists, StepShapes
from ge_text.models.base import LanguageModel
from ge_text.models.batch import padding_batch

__all__ = ["prepare_kinds", "prepared_shapes"]

Progress = Callable[[int, int], None]
REPEATS = 3


def prepare_kinds(model: LanguageModel) -> None:
    """Run a step of each kind with padding, on a model that takes any shape and has its cache open.

    The first of a kind takes longest: that of a piece of a prompt behind others 0.2 s more with
    OpenVINO 2026.4, for which all texts would wait when the first long prompt comes.

    Raises:
        GraphFailed: such a step cannot be run.
    """
    model.prepare((1, 1, 1))
    size = model.block_size
    piece = padding_batch((1, size, 2))
    (group,) = piece.groups
    behind = replace(group, lengths=np.full(1, 2 * size))
    model.step(replace(piece, groups=(behind,)))


def prepared_shapes(
    model: LanguageModel,
    lists: ShapeLists,
    clock: Callable[[], float],
    progress: Progress = lambda _done, _all: None,
) -> StepShapes:
    """Prepare every shape and run it with padding alone, the largest first; its best time counts.

    The model's cache is open; `progress` is called with how many are done, and of how many.

    Raises:
        GraphFailed: a shape cannot be made ready.
    """
    seconds: dict[Shape, float] = {}
    every = sorted((*lists.decode, *lists.prompt), key=lambda shape: (-shape[0] * shape[1], shape))
    for done, shape in enumerate(every, 1):
        model.prepare(shape)
        batch = padding_batch(shape)
        times = []
        for _ in range(REPEATS):
            begun = clock()
            model.step(batch)
            times.append(clock() - begun)
        seconds[shape] = min(times)  # what others do on the machine can only lengthen one
        progress(done, len(every))
    return StepShapes(lists, model.block_size, seconds.__getitem__)
