"""Publishing the recorder's sums as metrics of the host, on its own `/metrics`."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from ge_backend.errors import Status
from ge_backend.metrics import METRICS, Kind, Recorder

__all__ = ["Counters", "begin_at_zero"]

log = logging.getLogger(__name__)

PERIOD_S = 0.25
IDLE_S = 2.0
# The host keeps one series for all stubs that use its labels. So one that ends while another has
# taken its place, as at each reload, takes back what is true of the other: within a minute of its
# start, mostly. Each gauge is a message to the host.
REPUBLISH_S, REPUBLISH_SELDOM_S = 2.5, 20.0
YOUNG_S = 60.0

Key = tuple[str, tuple[tuple[str, str], ...]]


class Counters:
    """A thread that hands what was recorded to the host, four times a second.

    Where nothing is new it looks more seldom.

    All metric calls of the stub happen in this one thread: from several threads at once they crash
    the server (a shared record is rewritten while the GIL is released; seen on 2.51 with the
    Python backend of r24.10). Each call costs 10-15 microseconds, so none is made per request.

    Series are never deleted: whichever stub does so first frees it under all the others, and with
    two instances a load hung then (tried on 2.51). Source: triton-inference-server/core r24.10,
    src/metric_family.cc: references are counted by stub. So the host's objects outlive this stub's
    interpreter, too: as it ends, their destructors would ask for that deletion through what is
    gone by then, a segmentation fault. Source: python_backend r24.10, src/metric.cc.

    Args:
        recorder: what was recorded.
        labels: put on every series that has not its own: model, version, device.
        sample: records into it what is read rather than counted; called before each look.
        instance: the label `model_instance` of what each instance of a model tells by itself.
    """

    def __init__(
        self,
        recorder: Recorder,
        labels: Mapping[str, str],
        sample: Callable[[], None],
        *,
        instance: str,
    ) -> None:
        self._recorder = recorder
        self._sample = sample
        self._labels = dict(labels)
        self._instance = instance
        self._families: dict[str, Any] = {}
        self._series: dict[Key, Any] = {}
        self._published: dict[Key, float] = {}
        self._begun_s = self._republished_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish_until_stopped, name="metrics")
        self._thread.daemon = True
        self._thread.start()

    def close(self) -> None:
        """Publish the rest and end the thread."""
        self._stop.set()
        self._thread.join()

    def _publish_until_stopped(self) -> None:
        try:
            pause_s = PERIOD_S
            while not self._stop.wait(pause_s):
                pause_s = PERIOD_S if self._publish() else IDLE_S
            self._publish()
            self._take_back()
        except pb_utils.TritonModelException as error:
            log.warning("metrics are off: %s", error)  # --allow-metrics=false

    def _publish(self) -> bool:
        """Tell the host what is new; return whether anything was."""
        self._sample()
        values, observed = self._recorder.drain(), self._recorder.drain_observations()
        changed = bool(observed)
        for (name, labels), value in values.items():
            series = self._series.get((name, labels))
            if series is None:
                series = self._series[name, labels] = _immortal(
                    self._family(name).Metric(labels=self._labels_of(name) | dict(labels))
                )
            if METRICS[name].kind is Kind.COUNTER:
                series.increment(value)
                changed = True
            elif self._published.get((name, labels)) != value:  # most stay as they were
                series.set(value)
                self._published[name, labels] = value
                changed = True
        for name, value in observed:
            self._histogram(name).observe(value)
        now = time.monotonic()
        every_s = REPUBLISH_S if now < self._begun_s + YOUNG_S else REPUBLISH_SELDOM_S
        if now >= self._republished_s + every_s:
            self._republished_s = now
            for key in self._gauges():
                self._series[key].set(self._published[key])
        return changed

    def _take_back(self) -> None:
        """End what describes the present: the host's series outlive this instance."""
        for key in self._gauges():
            self._series[key].set(METRICS[key[0]].at_end)

    def _gauges(self) -> list[Key]:
        return [key for key in self._published if METRICS[key[0]].kind is Kind.GAUGE]

    def _labels_of(self, name: str) -> dict[str, str]:
        of_instance = "model_instance" in METRICS[name].labels
        return self._labels | ({"model_instance": self._instance} if of_instance else {})

    def _histogram(self, name: str) -> Any:
        key = (name, ())
        if key not in self._series:
            self._series[key] = _immortal(
                self._family(name).Metric(labels=self._labels, buckets=list(METRICS[name].bounds))
            )
        return self._series[key]

    def _family(self, name: str) -> Any:
        if name not in self._families:
            metric = METRICS[name]
            kind = getattr(pb_utils.MetricFamily, metric.kind.published.upper())
            self._families[name] = _immortal(
                pb_utils.MetricFamily(name=name, description=metric.help, kind=kind)
            )
        return self._families[name]


def _immortal(held: Any) -> Any:
    """Return an object whose destructor never runs."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    return held


def begin_at_zero(recorder: Recorder, devices: Iterable[str]) -> None:
    """Count nothing yet of what alerts watch: a series that begins with 1 has not grown.

    Nor of requests, by which the dashboard lists models.

    Args:
        recorder: of a model.
        devices: that it runs on, those of its steps included.
    """
    recorder.add("ge_requests_total", 0.0)
    for device in devices:
        recorder.add("ge_executor_restarts_total", 0.0, device=device)
    for status in Status:
        recorder.add("ge_request_failures_total", 0.0, status=status.value)
