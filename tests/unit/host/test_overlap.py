"""Batches of one instance beside each other: who begins one, and when the next may come."""

import threading

import pytest

from ge_backend.host.overlap import Overlap
from ge_backend.metrics import Recorder


class FakePipeline:
    """Is as the test says; a batch may begin when `lane` is set."""

    def __init__(self):
        self.overlaps, self.wide, self.busy = True, True, False
        self.recorder = Recorder()
        self.lane = threading.Event()
        self.widened = 0

    def widen(self):
        self.widened += 1

    def wait_for_lane(self):
        assert self.lane.wait(20)


@pytest.fixture
def pipeline():
    """With a lane free."""
    pipeline = FakePipeline()
    pipeline.lane.set()
    return pipeline


@pytest.fixture
def open_overlap(pipeline):
    """Returns a function from what serves a batch to an overlap."""
    opened = []

    def build(serve=lambda arrivals, begun: begun()):
        opened.append(Overlap(pipeline, serve))
        return opened[-1]

    yield build
    for overlap in opened:
        overlap.close()


def test_a_request_that_comes_alone_is_no_batch_beside_others(open_overlap, pipeline):
    """Several are, and one that comes while others run."""
    overlap = open_overlap()
    assert [overlap.wants(count) for count in (1, 2)] == [False, True]
    pipeline.busy = True
    assert overlap.wants(1)
    pipeline.overlaps = False
    assert not overlap.wants(2)


def test_the_first_batch_has_a_second_fleet_opened_beside_it(open_overlap, pipeline):
    """It is served as ever meanwhile, and so are the next ones until that is there."""
    pipeline.wide = False
    overlap = open_overlap()
    assert not overlap.wants(2)
    overlap.close()
    assert pipeline.widened == 1


def test_the_next_batch_may_come_when_a_lane_is_free(open_overlap, pipeline):
    """Whether this one has been answered or not."""
    pipeline.lane.clear()
    answered = threading.Event()

    def serve(arrivals, begun):
        begun()
        assert answered.wait(20)

    overlap = open_overlap(serve)
    serving = threading.Thread(target=overlap.serve, args=([1, 2],))
    serving.start()
    serving.join(0.05)
    assert serving.is_alive()
    pipeline.lane.set()
    serving.join(20)
    assert not serving.is_alive()
    answered.set()


def test_nothing_is_lost_when_it_is_closed(open_overlap):
    """What is under way has been answered then."""
    gate, answered = threading.Event(), []

    def serve(arrivals, begun):
        begun()
        assert gate.wait(20)
        answered.extend(arrivals)

    overlap = open_overlap(serve)
    overlap.serve([1, 2])
    overlap.serve([3])
    threading.Timer(0.05, gate.set).start()
    overlap.close()
    assert sorted(answered) == [1, 2, 3]


def test_a_batch_that_never_began_holds_up_nobody(open_overlap):
    """Where every request of it was refused, for instance."""
    open_overlap(lambda arrivals, begun: None).serve([1, 2])


def test_batches_beside_others_are_counted(open_overlap, pipeline):
    """Not those that found nothing under way."""
    overlap = open_overlap()
    overlap.serve([1, 2])
    assert pipeline.recorder.drain() == {}
    pipeline.busy = True
    overlap.serve([1, 2])
    assert pipeline.recorder.drain() == {("ge_overlapped_batches_total", ()): 1}
