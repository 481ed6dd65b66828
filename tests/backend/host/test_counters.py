"""What is recorded appears in the host's metrics, once, with the model's labels."""

import math

import pytest

from ge_backend.metrics import Recorder

LABELS = {"model": "m", "version": "1", "device": "cpu"}
INSTANCE = "m_0_1"


@pytest.fixture(autouse=True)
def seldom(pb_utils, monkeypatch):
    """Nothing is told between two lines of a test."""
    from ge_backend.host import counters

    monkeypatch.setattr(counters, "PERIOD_S", 1000.0)


def opened(recorder, sample=lambda: None):
    from ge_backend.host.counters import Counters

    return Counters(recorder, LABELS, sample, instance=INSTANCE)


def told(pb_utils, name):
    """Return what the series of a metric were set to, in order."""
    return [value for series in pb_utils.MetricFamily.families[name].series for value in series.was]


def test_counters_add_up_and_gauges_are_set(pb_utils):
    """Increments of several flushes sum; the last value of a gauge counts; what is read is there."""
    recorder = Recorder()
    recorder.add("ge_requests_total", 3)
    counters = opened(recorder, lambda: recorder.set("ge_device_up", 1.0, device="npu:1"))
    recorder.add("ge_requests_total", 4)
    recorder.add("ge_sub_batches_total", bucket="8x64")
    recorder.set("ge_sequences_live", 5)
    recorder.set("ge_sequences_live", 3)
    recorder.set("ge_warmup_seconds", 2.0)
    recorder.set("ge_warmup_seconds", 1.5)
    counters.close()
    families = pb_utils.MetricFamily.families
    assert [m.value for m in families["ge_requests_total"].series] == [7]
    assert families["ge_requests_total"].series[0].labels == LABELS
    assert families["ge_requests_total"].kind == "counter"
    assert families["ge_sub_batches_total"].series[0].labels == LABELS | {"bucket": "8x64"}
    assert [m.value for m in families["ge_warmup_seconds"].series] == [1.5]
    assert families["ge_warmup_seconds"].kind == "gauge"
    assert told(pb_utils, "ge_sequences_live")[0] == 3
    assert families["ge_sequences_live"].kind == "gauge"
    assert families["ge_sequences_live"].series[0].labels == LABELS | {"model_instance": INSTANCE}
    assert told(pb_utils, "ge_device_up")[0] == 1
    assert families["ge_device_up"].series[0].labels == LABELS | {"device": "npu:1"}


def test_a_host_without_metrics_costs_one_line(pb_utils, monkeypatch, caplog):
    """With metrics off the constructor raises; serving goes on."""

    def refuse(**_):
        raise pb_utils.TritonModelException("metrics not supported")

    monkeypatch.setattr(pb_utils, "MetricFamily", refuse)
    refuse.COUNTER = refuse.GAUGE = None
    recorder = Recorder()
    recorder.add("ge_requests_total")
    opened(recorder).close()
    assert "metrics are off: metrics not supported" in caplog.text


def test_what_was_told_of_a_model_ends_with_it(pb_utils):
    """Nothing waits in it and nobody tells of its devices; counts and what its load found stay.

    The host's series goes on behind its stub: a lost device would be an alert for ever.
    """
    recorder = Recorder()
    counters = opened(recorder)
    recorder.add("ge_requests_total", 3)
    recorder.set("ge_buckets", 2)
    recorder.set("ge_device_up", 0.0, device="npu:1")
    recorder.set("ge_text_waiting", 4)
    recorder.set("ge_backlog_requests", 5)
    counters.close()
    assert told(pb_utils, "ge_buckets") == [2]
    assert told(pb_utils, "ge_text_waiting") == [4, 0]
    assert told(pb_utils, "ge_backlog_requests") == [5, 0]
    lost, end = told(pb_utils, "ge_device_up")
    assert lost == 0
    assert math.isnan(end)
    (requests,) = pb_utils.MetricFamily.families["ge_requests_total"].series
    assert requests.value == 3


def test_a_gauge_that_stays_is_not_set_at_each_look(pb_utils):
    """A call of the host costs more than all else that an idle stub does."""
    recorder = Recorder()
    counters = opened(recorder)
    counters.close()
    for value in (7.0, 7.0, 8.0, 8.0, 7.0):
        recorder.set("ge_text_running", value)
        counters._publish()
    assert told(pb_utils, "ge_text_running") == [7.0, 8.0, 7.0]


def test_where_something_is_new_the_next_look_is_soon(pb_utils):
    """Gauges are read at each, and mostly stay as they are."""
    recorder = Recorder()
    counters = opened(recorder, lambda: recorder.set("ge_device_up", 1.0, device="npu:1"))
    counters.close()
    looks = [counters._publish(), counters._publish()]
    recorder.add("ge_requests_total")
    looks += [counters._publish(), counters._publish()]
    recorder.set("ge_text_running", 7.0)
    looks += [counters._publish(), counters._publish()]
    assert looks == [False, False, True, False, True, False]


def test_a_gauge_is_told_anew_now_and_then(pb_utils, monkeypatch):
    """A stub that ends takes back what its successor has told by the same labels."""
    from ge_backend.host import counters as module

    monkeypatch.setattr(module, "REPUBLISH_S", 0.0)
    recorder = Recorder()
    counters = opened(recorder)
    counters.close()
    recorder.set("ge_text_running", 7.0)
    recorder.set("ge_buckets", 2.0)
    for _ in range(3):
        counters._publish()
    assert told(pb_utils, "ge_text_running")[-3:] == [7.0] * 3
    assert told(pb_utils, "ge_buckets") == [2.0]  # what a load has found nobody takes back
    monkeypatch.setattr(module, "YOUNG_S", 0.0)
    before = len(told(pb_utils, "ge_text_running"))
    counters._publish()
    assert len(told(pb_utils, "ge_text_running")) == before  # later it is told more seldom
