"""What is recorded appears in the host's metrics, once, with the model's labels."""

from ge_backend.metrics import Recorder

LABELS = {"model": "m", "version": "1", "device": "cpu"}


def test_counters_add_up_and_gauges_are_set(pb_utils):
    """Increments of several flushes sum; the last value of a gauge stands; what is read is there."""
    from ge_backend.host.counters import Counters

    recorder = Recorder()
    recorder.add("ge_requests_total", 3)
    counters = Counters(recorder, LABELS, lambda: recorder.set("ge_device_up", 1.0, device="npu:1"))
    recorder.add("ge_requests_total", 4)
    recorder.add("ge_sub_batches_total", bucket="8x64")
    recorder.add("ge_sequences_live", 5)
    recorder.add("ge_sequences_live", -2)
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
    assert [m.value for m in families["ge_sequences_live"].series] == [3]
    assert families["ge_sequences_live"].kind == "gauge"
    assert [m.value for m in families["ge_device_up"].series] == [1]
    assert families["ge_device_up"].series[0].labels == LABELS | {"device": "npu:1"}


def test_a_host_without_metrics_costs_one_line(pb_utils, monkeypatch, caplog):
    """With metrics off the constructor raises; serving goes on."""
    from ge_backend.host.counters import Counters

    def refuse(**_):
        raise pb_utils.TritonModelException("metrics not supported")

    monkeypatch.setattr(pb_utils, "MetricFamily", refuse)
    refuse.COUNTER = refuse.GAUGE = None
    recorder = Recorder()
    recorder.add("ge_requests_total")
    Counters(recorder, LABELS, lambda: None).close()
    assert "metrics are off: metrics not supported" in caplog.text


def test_a_gauge_that_stays_is_not_set_again(pb_utils, monkeypatch):
    """A call of the host costs more than all else that an idle stub does."""
    from ge_backend.host.counters import Counters

    recorder = Recorder()
    counters = Counters(recorder, LABELS, lambda: None)
    counters.close()
    told = []
    for value in (7.0, 7.0, 8.0, 8.0, 7.0):
        recorder.set("ge_buckets", value)
        counters._publish()
        (series,) = pb_utils.MetricFamily.families["ge_buckets"].series
        monkeypatch.setattr(series, "set", told.append)
    assert told == [8.0, 7.0]  # the first was told before anybody listened
