"""What one process writes into the page, others read."""

import mmap
import os
import threading

import pytest

from ge_backend.device.health import Health
from ge_backend.errors import ProtocolError
from ge_backend.executor.protocol.outstanding import Outstanding, OutstandingView, PoolSample


@pytest.fixture
def page():
    page = Outstanding()
    yield page
    page.close()


def test_every_view_sees_the_sum_as_it_is(page):
    """The work of all stubs adds up, and goes when it has ended."""
    views = [OutstandingView(page.descriptor) for _ in range(2)]
    page.change(30)
    page.change(12)
    assert [view.ns for view in views] == [42, 42]
    page.change(-30)
    assert [view.ns for view in views] == [12, 12]
    page.change(-12)
    assert [view.ns for view in views] == [0, 0]


def test_the_pool_is_seen_beside_it(page):
    """Neither disturbs the other; before the first sample there is no pool."""
    view = OutstandingView(page.descriptor)
    assert view.pool == PoolSample()
    page.change(42)
    sample = PoolSample(
        size_bytes=12 << 30, placed_bytes=4, leased_bytes=3, peak_bytes=2, evictions=1
    )
    page.show(sample)
    assert (view.ns, view.pool) == (42, sample)


def test_the_devices_health_is_seen_beside_it(page):
    """Before anybody has asked it, nothing is known."""
    view = OutstandingView(page.descriptor)
    assert view.health == Health()
    page.show(PoolSample(size_bytes=1, evictions=7))
    health = Health(abnormal=1, cube=50, vector=-1, aicpu=100)
    page.show_health(health)
    page.show_memory(2**40)
    assert (view.health, view.pool.evictions) == (health, 7)
    assert view.memory_bytes == 2**40


def test_a_view_outlives_the_executor():
    """What is read then is old, and harms nobody."""
    page = Outstanding()
    view = OutstandingView(page.descriptor)
    page.change(7)
    page.close()
    assert view.ns == 7


def test_no_work_is_lost_between_threads(page):
    """Lanes and connections count at the same time."""
    view = OutstandingView(page.descriptor)

    def work():
        for _ in range(2000):
            page.change(3)
            page.change(-3)
        page.change(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert view.ns == 4


def test_a_view_cannot_write(page):
    """A stub's defect does not falsify what others go by."""
    with pytest.raises(TypeError):
        OutstandingView(page.descriptor)._cells[0] = 1


def test_something_else_is_refused():
    """A descriptor that is no such page is not mapped."""
    descriptor = os.memfd_create("short")
    os.ftruncate(descriptor, mmap.PAGESIZE - 1)
    with pytest.raises(ProtocolError, match="no page"):
        OutstandingView(descriptor)
    os.close(descriptor)


def test_sums_that_no_cell_can_hold_are_shown_as_the_most():
    """One stub's nonsense does not end the connections of others, and is forgotten again."""
    outstanding = Outstanding()
    for _ in range(3):
        outstanding.change(2**62)
    view = OutstandingView(outstanding.descriptor)
    assert view.ns == 2**63 - 1
    outstanding.change(-(2**63))
    assert view.ns == 2**62
    outstanding.close()
