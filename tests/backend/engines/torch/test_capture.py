"""Captured shapes on a device whose streams run as late as they may."""

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fakes.torch_vendor import FakeVendor  # noqa: E402
from ge_backend.engines.torch import capture  # noqa: E402
from ge_backend.engines.torch.capture import PLACES, CapturedShape  # noqa: E402
from ge_backend.engines.torch.packing import Packing  # noqa: E402
from ge_backend.engines.torch.streams import Streams  # noqa: E402

SHAPE = (2, 3)
KINDS = Packing({"x": (torch.float32, SHAPE)})
ROWS = np.arange(6, dtype=np.float32).reshape(SHAPE)


@pytest.fixture(params=["few", "many"], autouse=True)
def crossing(request, monkeypatch):
    """Return how many bytes a run's tensors count as: they cross the bus in other streams."""
    if request.param == "many":
        monkeypatch.setattr(capture, "FEW_BYTES", 0)
    return request.param


@pytest.fixture
def vendor():
    return FakeVendor()


@pytest.fixture
def streams(vendor):
    return Streams(vendor)


def captured(streams, call=lambda x: x + 1):
    with streams.computing():
        return CapturedShape(
            streams, KINDS, KINDS, lambda given: {"x": call(given["x"])}, {"x": ROWS}
        )


def test_a_run_uploads_replays_and_downloads(streams, vendor, crossing):
    """Results are those of these inputs, at each run anew."""
    shape = captured(streams)
    for factor in (1, 2, 3):
        result = shape.run({"x": ROWS * factor}, {})
        assert np.array_equal(result["x"], ROWS * factor + 1)
    assert vendor.counts["replay", "compute"] == 3
    by_themselves = 3 if crossing == "many" else 0
    assert vendor.counts["copy", "downloads"] == by_themselves
    assert vendor.counts["copy", "uploads"] == by_themselves + (crossing == "many")


def test_first_rows_come_back_alone(streams, vendor, crossing):
    """The others are not copied; a run after it brings all again."""
    shape = captured(streams)
    moved = []
    for rows in (None, 1):
        before = vendor.copied_bytes
        result = shape.run({"x": ROWS}, {}, rows=rows)["x"]
        assert np.array_equal(result, ROWS[:rows] + 1)
        moved.append(vendor.copied_bytes - before)
    copies = 2 if crossing == "many" else 1
    assert moved[0] - moved[1] == copies * ROWS[1:].nbytes
    place = np.zeros((1, 3), np.float32)
    assert shape.run({"x": -ROWS}, {"x": place}, rows=1)["x"] is place
    assert np.array_equal(place, 1 - ROWS[:1])
    assert np.array_equal(shape.run({"x": ROWS}, {})["x"], ROWS + 1)


def test_it_is_captured_with_valid_values(streams):
    """Not with what happens to lie in the buffers: tables are indexed by it."""
    seen = []

    def call(x):
        seen.append(x.clone())
        return x

    captured(streams, call)
    assert np.array_equal(seen[0].numpy(), ROWS)


def test_results_go_to_their_place_or_to_an_array_of_their_own(streams):
    """A place that does not fit is left alone; a result is never overwritten by the next run."""
    shape = captured(streams)
    place, wrong = np.zeros(SHAPE, np.float32), np.zeros((3, 2), np.float32)
    assert shape.run({"x": ROWS}, {"x": place})["x"] is place
    kept = shape.run({"x": ROWS}, {"x": wrong})["x"]
    shape.run({"x": -ROWS}, {})
    assert np.array_equal(kept, ROWS + 1)
    assert not wrong.any()


def test_nothing_is_allocated_by_runs(streams, vendor):
    """Buffers, on both sides, are made with the capture."""
    shape = captured(streams)
    before = vendor.counts["allocate", ""]
    for _ in range(5):
        shape.run({"x": ROWS}, {})
    assert vendor.counts["allocate", ""] == before


def test_the_next_run_is_queued_while_one_is_in_flight(streams, vendor):
    """A second run uploads and replays before anybody has waited for the first; a third waits."""
    shape = captured(streams)
    waits, go = threading.Semaphore(0), threading.Event()

    def before_wait():
        waits.release()
        go.wait()

    vendor.before_wait = before_wait
    results = {}

    def run(factor):
        results[factor] = shape.run({"x": ROWS * factor}, {})["x"]

    threads = [threading.Thread(target=run, args=(factor,)) for factor in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for _ in range(PLACES):
        waits.acquire()
    assert vendor.counts["replay", "compute"] == PLACES > 1
    assert not results
    go.set()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(results[factor], ROWS * factor + 1) for factor in (1, 2, 3))


def test_captured_shapes_share_the_pool(streams, vendor):
    """All replay in one stream, so that one pool serves them."""
    shapes = [captured(streams), captured(streams, lambda x: x * 2)]
    assert np.array_equal(shapes[1].run({"x": ROWS}, {})["x"], ROWS * 2)
    assert np.array_equal(shapes[0].run({"x": ROWS}, {})["x"], ROWS + 1)
    assert list(vendor.pool_streams) == [id(streams.pool)]


def test_a_failed_replay_reaches_its_own_run(streams, vendor):
    """What fails on the device is raised by the run, and the next one is well."""
    shape = captured(streams)
    vendor.replay_errors = [RuntimeError("broken")]
    with pytest.raises(RuntimeError, match="broken"):
        shape.run({"x": ROWS}, {})
    for _ in range(PLACES + 1):
        assert np.array_equal(shape.run({"x": ROWS}, {})["x"], ROWS + 1)


@pytest.mark.parametrize("call", [lambda x: x * x[x > 1].sum(), lambda x: x * x.sum().item()])
def test_what_has_to_wait_cannot_be_captured(streams, vendor, call):
    """Nothing is held then."""
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        captured(streams, call)
    assert vendor.allocated_bytes() == 0


def test_a_broken_capture_spoils_no_later_one(streams, vendor):
    """Its pool is given up: torch 2.11 and 2.12 capture nothing in it any more."""
    before = captured(streams)
    vendor.capture_errors.append(RuntimeError("operation not permitted when stream is capturing"))
    with pytest.raises(RuntimeError, match="not permitted"):
        captured(streams)
    after = captured(streams, lambda x: x * 2)
    assert np.array_equal(after.run({"x": ROWS}, {})["x"], ROWS * 2)
    assert np.array_equal(before.run({"x": ROWS}, {})["x"], ROWS + 1)
