"""The metrics table and the recorder."""

import re
import threading
from pathlib import Path

import pytest

from ge_backend.metrics import METRICS, Kind, Recorder


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric):
    """Names begin with `ge_`; counters end with `_total`; a help text is a sentence."""
    assert re.fullmatch(r"ge_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.help[0].isupper()
    assert metric.help.endswith(".")


def test_additions_sum_up():
    """A counter's drained value is the sum of what was added since the last drain."""
    recorder = Recorder()
    recorder.add("ge_rows_total")
    recorder.add("ge_rows_total", 2.5)
    assert recorder.drain() == {("ge_rows_total", ()): 3.5}
    assert recorder.drain() == {}
    recorder.add("ge_rows_total", 4)
    assert recorder.drain() == {("ge_rows_total", ()): 4}


def test_the_last_setting_of_a_gauge_counts():
    """A gauge is what it was set to last."""
    recorder = Recorder()
    recorder.set("ge_buckets", 3)
    recorder.set("ge_buckets", 2)
    assert recorder.drain() == {("ge_buckets", ()): 2}


def test_labels_keep_values_apart_whatever_their_order():
    """The same labels in another order are the same series, other values another one."""
    recorder = Recorder()
    recorder.add("ge_sub_batches_total", 1, bucket="8x64", b="1")
    recorder.add("ge_sub_batches_total", 1, b="1", bucket="8x64")
    recorder.add("ge_sub_batches_total", 1, bucket="8x32", b="1")
    assert recorder.drain() == {
        ("ge_sub_batches_total", (("b", "1"), ("bucket", "8x64"))): 2,
        ("ge_sub_batches_total", (("b", "1"), ("bucket", "8x32"))): 1,
    }


def test_what_tests_read_of_servers_is_published():
    """A name that is not is read as 0, and much can be said of that."""
    published = set()
    for metric in METRICS.values():
        parts = ("_count", "_sum", "_bucket") if metric.kind is Kind.HISTOGRAM else ("",)
        published |= {metric.name + part for part in parts}
    tests = (Path(__file__).resolve().parents[1] / "server").glob("*.py")
    read = {name for path in tests for name in re.findall('"(ge_[a-z_]*[a-z])"', path.read_text())}
    assert read & published
    assert read - published <= {"ge_backend"}


@pytest.mark.parametrize("record", [Recorder.add, Recorder.set])
def test_a_metric_outside_the_table_is_refused(record):
    """A name that is not in the table is a KeyError, so that no metric goes undocumented."""
    with pytest.raises(KeyError, match="ge_nothing"):
        record(Recorder(), "ge_nothing", 1)


def test_nothing_is_lost_between_threads():
    """Additions from many threads, drained meanwhile, sum up to all of them."""
    recorder, drained = Recorder(), []

    def work():
        for _ in range(2000):
            recorder.add("ge_rows_total")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        drained.append(recorder.drain())
    drained.append(recorder.drain())
    assert sum(values.get(("ge_rows_total", ()), 0) for values in drained) == 8000


def test_counters_of_the_same_labels_are_added_to_together():
    """As if each were added to by itself; a metric that is not in the table is a defect."""
    together, apart = Recorder(), Recorder()
    values = {"ge_queue_seconds_total": 0.5, "ge_run_seconds_total": 2.0}
    for _ in range(2):
        together.add_each(values, device="cpu")
        for name, value in values.items():
            apart.add(name, value, device="cpu")
    assert together.drain() == apart.drain()
    with pytest.raises(KeyError):
        together.add_each({"ge_unknown": 1.0})
