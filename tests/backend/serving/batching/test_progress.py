"""What of a batch has come back, and what is run once more."""

from dataclasses import replace

import numpy as np
import pytest

from ge_backend.errors import ExecutorLost, GraphFailed, InvalidRequest, OutOfMemory
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.batching.device_tensor import BatchRetention
from ge_backend.serving.batching.plan import RowSpan, run_of
from ge_backend.serving.batching.progress import Progress, RunNote
from ge_backend.serving.batching.request import check_request
from ge_backend.shapes.buckets.costs import StaticCosts
from ge_backend.tensors import DATA_TYPES

COMMON = {"name": "ids", "dtype": DATA_TYPES["INT64"], "dims": (-1,), "axes": (0,)}
LAYOUT = Layout(
    batched=True,
    axes=("length",),
    limits={},
    inputs=(InputLayout(fill=0.0, made="", names=("length",), **COMMON),),
    outputs=(OutputLayout(names=("length",), **COMMON),),
)
COSTS = StaticCosts({(4, 8): 10.0})
RETENTION = BatchRetention({}, iter(()), [])


def progress_of(*slots, retention=None):
    """Return the progress of a batch of one row per request, and the run of all of them."""
    batch = [
        replace(check_request(i, {"ids": np.ones((1, 2), np.int64)}, LAYOUT), slot=slot)
        for i, slot in enumerate(slots)
    ]
    spans = tuple(RowSpan(i, 0, 1) for i in range(len(slots)))
    return Progress(batch, COSTS, LAYOUT, retention), run_of(spans, (2,), COSTS)


@pytest.mark.parametrize(
    ("error", "slots", "retention", "suspects", "dangers"),
    [
        (GraphFailed, (-1, -1), None, 2, 0),
        (GraphFailed, (0, 1), None, 2, 0),
        (OutOfMemory, (-1, -1), None, 0, 2),
        (OutOfMemory, (0, 1), None, 0, 2),
        (OutOfMemory, (-1, -1), RETENTION, 0, 0),
        (ExecutorLost, (-1, -1), None, 0, 2),
        (ExecutorLost, (-1, -1), RETENTION, 0, 2),
        (ExecutorLost, (0, 1), None, 0, 0),
        (InvalidRequest, (-1, -1), None, 0, 0),
        (OutOfMemory, (-1,), None, 0, 0),
        (GraphFailed, (-1,), None, 0, 0),
    ],
)
def test_what_may_be_one_requests_doing_is_repeated_for_each(
    error, slots, retention, suspects, dangers
):
    """Not what was alone already, nor a step whose state is gone, nor what a runner repeats."""
    progress, run = progress_of(*slots, retention=retention)
    assert progress.repeats_alone(run, error("no")) == (suspects + dangers > 0)
    assert (len(progress.suspects), len(progress.dangers)) == (suspects, dangers)


def test_a_request_is_complete_with_its_last_row_and_fails_once():
    """What comes of one that has failed is dropped."""
    progress, run = progress_of(-1, -1)
    rows = {"ids": np.ones((1, 2), np.int64)}
    outputs = progress.take((run.spans[0], rows))
    assert outputs is not None
    assert outputs["ids"].tolist() == [[1, 1]]
    assert [reply.request for reply in progress.fail(run, GraphFailed("no"))] == [0, 1]
    assert list(progress.fail(run, GraphFailed("no"))) == []
    assert progress.failed(1)
    assert progress.abandoned(run)
    assert progress.take((run.spans[1], rows)) is None


def test_runs_are_noted_for_those_whose_rows_they_had():
    """The shape that ran, its real rows, and what else was in it; once, whatever the spans."""
    progress, run = progress_of(-1, -1)
    progress.note_run(replace(run, spans=(*run.spans, RowSpan(1, 1, 0))))
    told = [RunNote(bucket="4x8", rows=2, padding=4 * 8 - 2 * 2)]
    assert progress.runs == {0: told, 1: told}


def test_packed_rows_are_run_without_padding():
    """Their shape is what the longest needs; what lies behind the others is not computed."""
    progress, _ = progress_of(-1, -1)
    spans = (RowSpan(0, 0, 1), RowSpan(1, 0, 1))
    packed = run_of(spans, (2,), COSTS, mean=(2,))
    assert RunNote.of(packed, progress.requests).padding == 0
