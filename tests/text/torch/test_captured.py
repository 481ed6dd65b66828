"""A captured bucket draws what an uncaptured one draws, on a device that computes late."""

import logging
import weakref

import numpy as np
import pytest

from builders.language import Text, batch_of, make, opened, run, texts_for
from fakes.torch_vendor import FakeVendor
from ge_backend.engines.torch.streams import Streams
from ge_backend.errors import DeviceFault, GraphFailed, OutOfMemory
from ge_text.models.batch import padding_batch
from ge_text.torch import model as language_model
from ge_text.torch.captured import bucket_of, parts_of

PROMPTS = [np.arange(1, 1 + length) * 5 % 90 for length in (2, 9, 14, 5)]
GROWTH = 8


def bucket(rows, query, blocks):
    """One row count and table width; decoding, short and long chunks."""
    return 4, next(size for size in (1, 4, 24) if size >= query), 8


BUCKETS = [bucket(1, query, 1) for query in (1, 4, 24)]


@pytest.fixture(params=["llama", "gpt2"])
def folder(request, tmp_path):
    make(tmp_path, request.param)
    return tmp_path


def on_fake(folder, blocks, vendor):
    model = opened(folder, blocks=0)
    model._streams = Streams(vendor)
    model.open_cache(blocks)
    return model


def texts():
    return texts_for(PROMPTS, np.random.default_rng(5), 4, 32)


def test_replays_draw_what_eager_steps_draw(folder):
    """Prompts in chunks and decoding, each step one replay; nothing is left of the step before."""
    expected, blocks = texts()
    run(opened(folder, blocks=blocks), expected, GROWTH, np.random.default_rng(1))
    vendor = FakeVendor()
    model = on_fake(folder, blocks, vendor)
    for size in BUCKETS:
        model.prepare(size)
        model.prepare(size)
    assert vendor.counts["capture", "compute"] == len(BUCKETS)
    allocated = vendor.counts["allocate", ""]
    found, _ = texts()
    steps = 0
    for text in found:  # one at a time: a step of one group
        for chunk in (3, 24):
            part = min(chunk, len(text.known) - text.computed)
            if part:
                steps += 1
                grow(model, text, part)
    while max(len(text.output) for text in found) < GROWTH:
        steps += 1
        batch = batch_of([(text, 1) for text in found], 4, bucket=bucket)
        drawn = model.step(batch)
        for text, token in zip(found, drawn.tokens.tolist(), strict=True):
            text.computed += 1
            text.output.append(token)
    for text, of_eager in zip(found, expected, strict=True):
        assert len(text.output) >= GROWTH - 1
        assert text.output == of_eager.output[: len(text.output)]
    assert vendor.counts["replay", "compute"] == steps
    assert vendor.counts["allocate", ""] == allocated


def grow(model, text, count):
    batch = batch_of([(text, count)], 4, bucket=bucket)
    drawn = model.step(batch)
    text.computed += count
    text.output.extend(drawn.tokens.tolist())


def test_groups_of_one_step_are_replayed_one_after_the_other(folder):
    """A chunk beside decoding rows, and two chunks in one bucket, cost no step out of a graph."""
    expected, blocks = texts()
    run(opened(folder, blocks=blocks), expected, GROWTH, np.random.default_rng(1))
    vendor = FakeVendor()
    model = on_fake(folder, blocks, vendor)
    for size in BUCKETS:
        model.prepare(size)
    found, _ = texts()
    for spans in ([(0, 2), (1, 9)], [(0, 1), (1, 1), (2, 14), (3, 3)], [(0, 1), (1, 1), (2, 1)]):
        batch = batch_of([(found[at], count) for at, count in spans], 4, bucket=bucket)
        before = vendor.counts["replay", "compute"]
        drawn = iter(model.step(batch).tokens.tolist())
        assert vendor.counts["replay", "compute"] == before + len(batch.groups)
        for at, count in spans:
            text = found[at]
            text.computed += count
            if text.computed == len(text.known):
                text.output.append(next(drawn))
    assert [len(batch_part.output) for batch_part in found] == [3, 3, 2, 0]
    for text, of_eager in zip(found, expected, strict=True):
        assert text.output == of_eager.output[: len(text.output)]


def test_what_was_not_captured_runs_as_it_is(folder):
    """Shapes that nobody prepared, alone or beside one that was."""
    vendor = FakeVendor()
    expected, blocks = texts()
    run(opened(folder, blocks=blocks), expected, GROWTH, np.random.default_rng(1))
    model = on_fake(folder, blocks, vendor)
    model.prepare((4, 1, 8))
    found, _ = texts()
    run(model, found, GROWTH, np.random.default_rng(1))
    assert [text.output for text in found] == [text.output for text in expected]


def test_a_bucket_that_cannot_be_captured_is_told_and_runs(folder, caplog):
    """It is slower, not wrong. Those that do the same are not tried, the others are captured."""
    vendor = FakeVendor()
    vendor.capture_errors.append(RuntimeError("operation not permitted when stream is capturing"))
    model = on_fake(folder, 9, vendor)
    with caplog.at_level(logging.WARNING):
        model.prepare((4, 1, 8))
    assert "bucket (4, 1, 8) cannot be captured and runs operator by operator" in caplog.text
    model.prepare((4, 4, 8))
    model.prepare((1, 20, 8))
    assert list(model._captured) == [(1, 20, 8)]
    assert vendor.counts["capture", "compute"] == 2
    text = Text(prompt=PROMPTS[0], table=np.arange(1, 9))
    grow(model, text, 2)
    grow(model, text, 1)
    assert len(text.output) == 2


def test_a_bucket_without_room_is_told_and_the_next_one_captured(folder):
    """A smaller one may fit."""
    vendor = FakeVendor()
    vendor.capture_errors.append(RuntimeError("fake out of memory"))
    model = on_fake(folder, 9, vendor)
    model.prepare((4, 4, 8))
    model.prepare((4, 1, 8))
    assert list(model._captured) == [(4, 1, 8)]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("fake fault: gone", DeviceFault),
        ("no kernel", GraphFailed),
        ("error code is 207018", OutOfMemory),
    ],
)
def test_an_error_of_the_device_is_told_apart_from_one_of_the_step(folder, message, error):
    """After a fault nothing that the process holds there can be relied upon."""
    vendor = FakeVendor()
    vendor.is_out_of_memory = lambda told: "207018" in str(told)  # as on an NPU
    model = on_fake(folder, 9, vendor)
    model.prepare((4, 1, 8))
    vendor.replay_errors.append(RuntimeError(message))
    with pytest.raises(error):
        model.step(padding_batch((4, 1, 8)))
    faulty = FakeVendor()
    faulty.capture_errors.append(RuntimeError("fake fault: gone"))
    with pytest.raises(DeviceFault):
        on_fake(folder, 9, faulty).prepare((4, 1, 8))


def test_more_sampled_tokens_than_a_bucket_has_room_for_run_as_they_are(folder):
    """A long chunk ends in one token for each row; all of them are wanted seldom."""
    vendor = FakeVendor()
    model = on_fake(folder, 17, vendor)
    model.prepare((1, 24, 8))
    batch = padding_batch((1, 24, 8))
    every = type(batch)(
        **{name: getattr(batch, name) for name in ("ids", "positions", "slots", "groups")},
        sampled=np.arange(24),
        rows=batch.rows * 24,
    )
    assert len(model.step(every).tokens) == 24
    assert vendor.counts["replay", "compute"] == 0
    model.step(batch)
    assert vendor.counts["replay", "compute"] == 1


def test_a_step_falls_into_its_groups():
    """Each has its own tokens and draws, which it counts from its own first token."""
    first, second = padding_batch((2, 3, 4)), padding_batch((3, 1, 2))
    names = ("ids", "positions", "slots")
    both = type(first)(
        **{n: np.concatenate([getattr(first, n), getattr(second, n) + 7]) for n in names},
        groups=first.groups + second.groups,
        sampled=np.array([2, 6, 8]),
        rows=first.rows[:1] + second.rows[:2],
    )
    parts = parts_of(both)
    assert [bucket_of(part) for part in parts] == [(2, 3, 4), (3, 1, 2)]
    assert [part.sampled.tolist() for part in parts] == [[2], [0, 2]]
    assert [len(part.rows) for part in parts] == [1, 2]
    assert [part.ids.tolist() for part in parts] == [[0] * 6, [7] * 3]


def test_a_closed_model_holds_no_memory_of_the_device(folder):
    """Buffers of captured buckets go with it."""
    vendor = FakeVendor()
    model = on_fake(folder, 9, vendor)
    model.prepare((4, 1, 8))
    weights = weakref.ref(next(weights_of(model)))
    assert vendor.used_bytes > 0
    vendor.streams[0].queue(lambda: None)
    model.close()
    assert not vendor.streams[0].work  # what is in flight may use what is freed
    assert weights() is None
    assert vendor.memory().free_bytes == vendor.total_bytes
    assert vendor.used_bytes == 0


def weights_of(model):
    """Yield the weights of either form of a decoder."""
    decoder = model._decoder
    module = getattr(decoder, "_model", None)
    yield from [decoder._embedding] if module is None else module.parameters()


def test_closing_waits_as_whoever_computes(folder, monkeypatch):
    """A wait for the whole device breaks the capture of another model."""
    vendor = FakeVendor()
    model = on_fake(folder, 9, vendor)
    held = []
    monkeypatch.setattr(vendor, "synchronize", lambda: held.append(model._streams._order.locked()))
    monkeypatch.setattr(vendor, "give_back", lambda: held.append(model._streams._order.locked()))
    model.close()
    assert held == [True, True]


def test_that_step_draws_as_who_samples(folder, monkeypatch):
    """Whoever takes the best alone needs half of that."""
    model, drawn, real = opened(folder), [], language_model.draw
    model._streams = Streams(FakeVendor())
    monkeypatch.setattr(
        language_model, "draw", lambda scores, rows: drawn.extend(rows) or real(scores, rows)
    )
    model.memory_left([(4, 1, 2)])
    assert drawn
    assert all(not row.sampling.greedy and row.sampling.top_p < 1 for row in drawn)


def test_a_cache_leaves_room_for_the_largest_step(folder):
    """What a step takes is measured on the device, before the cache has all that is left."""
    vendor = FakeVendor(scratch_bytes=10**9)
    model = opened(folder)
    before = model.memory_left()
    model._streams = Streams(vendor)
    assert model.memory_left([(1, 24, 8), (4, 1, 8)]) == pytest.approx(before - 10**9 / 4, abs=1e6)
    model.open_cache(9)
