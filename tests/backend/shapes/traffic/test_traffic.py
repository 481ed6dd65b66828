import threading

from ge_backend.shapes.traffic.traffic import MAX_MISSED, REQUEST_ROWS, Traffic


def test_a_batch_counts_once_in_rows_and_each_row_in_its_sizes():
    """Rows are those of a batch, since a bucket's rows are filled from several requests."""
    traffic = Traffic(("query", "doc"))
    counted = traffic.add([(2, (5, 90)), (1, (7, 90)), (1, (5, 90))])
    assert counted == {(5, 90): 3, (7, 90): 1}
    assert traffic.add([]) == {}
    taken = traffic.take()
    assert list(taken) == ["rows", REQUEST_ROWS, "query", "doc"]
    assert taken["rows"].points() == [(4, 1)]
    assert taken[REQUEST_ROWS].points() == [(1, 2), (2, 1)]
    assert taken["query"].points() == [(5, 3), (7, 1)]
    assert taken["doc"].points() == [(90, 4)]


def test_what_was_taken_is_not_given_again():
    """Each call returns what came since the last one."""
    traffic = Traffic(("length",))
    traffic.add([(1, (5,))])
    traffic.take()
    assert traffic.take()["length"].total == 0
    traffic.add([(1, (6,))])
    assert traffic.take()["length"].points() == [(6, 1)]


def test_missed_sizes_are_few_distinct_and_largest_first():
    """A flood of odd sizes takes no more memory than a few."""
    traffic = Traffic(("length",))
    for size in (700, 900, 700):
        traffic.miss((size,))
    assert traffic.take_missed() == [(900,), (700,)]
    assert traffic.take_missed() == []
    for size in range(1000):
        traffic.miss((size,))
    assert len(traffic.take_missed()) == MAX_MISSED


def test_nothing_is_lost_between_threads():
    """Serving adds while another thread takes."""
    traffic = Traffic(("length",))
    batches, taken, done = 400, [], threading.Event()

    def add():
        for _ in range(batches):
            traffic.add([(2, (9,))])

    def take():
        while not done.is_set():
            taken.append(traffic.take()["length"].total)

    adders = [threading.Thread(target=add) for _ in range(3)]
    taker = threading.Thread(target=take)
    for thread in (taker, *adders):
        thread.start()
    for thread in adders:
        thread.join()
    done.set()
    taker.join()
    assert sum(taken) + traffic.take()["length"].total == 3 * batches * 2
