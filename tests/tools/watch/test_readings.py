"""Devices from two readings, and what counters grew by."""

from builders.recordings import AFTER, BEFORE
from ge_tools.watch.readings import Reading, change, device_lines, grown


def test_a_device_is_told_as_it_is():
    """All its models see one pool and one queue: nothing is added up."""
    (line,) = device_lines(BEFORE, AFTER)
    assert (line.device, line.up, line.outstanding_ms, line.busy) == ("cpu", True, 250, 1.0)
    assert (line.pool_bytes, line.used_bytes, line.peak_bytes) == (1024, 128, 512)


def test_a_device_that_any_model_lost_is_lost():
    """One model's view is enough to look."""
    values = {
        ("ge_device_up", (("device", "npu:0"), ("model", name))): up
        for name, up in (("a", 1.0), ("b", 0.0))
    }
    (line,) = device_lines(BEFORE, Reading(at_s=11, values=values))
    assert not line.up


def test_models_of_other_backends_are_not_ours():
    """The host counts requests of every model."""
    values = {
        ("nv_inference_count_total", (("model", "theirs"),)): 1.0,
        ("ge_buckets", (("model", "m"),)): 3.0,
    }
    assert Reading(at_s=1, values=values).models == ["m"]


def test_what_grew_is_told_by_label():
    """What did not grow is left out."""
    assert grown(BEFORE, AFTER, "ge_sub_batches_total", "bucket", model="m") == {
        "4x8": 4,
        "8x8": 16,
    }


def test_a_version_that_is_gone_takes_nothing_from_what_others_grew_by():
    """The host drops its series with the version, so their sum falls while the others grow."""
    name = "nv_inference_request_success_total"

    def seen(**counts):
        values = {(name, (("model", "m"), ("version", v[1:]))): n for v, n in counts.items()}
        return Reading(at_s=1, values=values)

    for before, after, growth in (
        (seen(v1=1000.0, v2=500.0), seen(v2=510.0), 10),  # unloaded
        (seen(v1=1000.0), seen(v2=1500.0), 1500),  # replaced by a newer one
        (seen(v1=1000.0, v2=500.0), seen(v1=1010.0, v2=3.0), 13),  # one was loaded again
    ):
        assert change(before, after, name, model="m") == growth
        assert grown(before, after, name, "model") == {"m": growth}
