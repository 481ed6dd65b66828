"""`ge-backend report` on a real server: its numbers are those of the metrics, its runs are real."""

import math
import random
import time
from itertools import pairwise

import numpy as np
import pytest
import tritonclient.grpc as client

from ge_tools.main import main
from ge_tools.page import recording as recording_module
from ge_tools.page.numbers import host_latencies, run_latencies, served_models
from ge_tools.page.page import render
from ge_tools.page.recording import record

pytestmark = pytest.mark.server

REQUESTS = 30
STEPS = ("tokenizer", "text_encoder", "classifier_head")
# How many of them models count: the fused ensemble, and each step of the host's.
COUNTED = REQUESTS * (1 + len(STEPS))
# More than the requests take on a slow machine; it ends when they have been counted.
SECONDS = 60.0


class Clock:
    """The clock by which a recording ends, which can be set forward."""

    time, sleep = staticmethod(time.time), staticmethod(time.sleep)
    ahead_s = 0.0

    def monotonic(self):
        return time.monotonic() + self.ahead_s


@pytest.fixture(scope="module")
def server(triton_server, made_models):
    percentiles = ("--metrics-config=summary_latencies=true",)
    return triton_server(made_models, arguments=percentiles)


def send(server):
    """Send texts of different lengths through the ensemble, fused and the host's."""
    lengths = random.Random(1)
    with client.InferenceServerClient(server.grpc) as connection:
        for _ in range(REQUESTS):
            text = client.InferInput("text", [1, 1], "BYTES")
            words = "rain " * lengths.randint(1, 60)
            text.set_data_from_numpy(np.array([[words]], dtype=object))
            connection.infer("text_classifier_fused", [text])
            connection.infer("text_classifier", [text])


@pytest.fixture(scope="module")
def recording(server):
    """A recording of a server that serves these requests and no others."""
    said, clock = [], Clock()

    def say(text):
        if not said:
            send(server)
        elif f": {COUNTED} requests" in text:
            clock.ahead_s = SECONDS
        said.append(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording_module, "time", clock)
        return record(server.metrics, SECONDS, say)


def test_its_numbers_are_what_was_sent(recording):
    """Every request is counted once at each model that it went through."""
    found = {model.model: model for model in served_models(recording)}
    assert set(found) == {
        *STEPS,
        "text_classifier_fused",
        *(f"text_classifier_fused/{step}" for step in STEPS),
    }
    assert {model.requests for model in found.values()} == {REQUESTS}
    assert {model.failures for model in found.values()} == {0}
    sizes = found["text_encoder"].sizes["sequence"]
    assert sum(rows for _, rows in sizes) == REQUESTS
    assert sizes == found["text_classifier_fused/text_encoder"].sizes["sequence"]


def test_the_runs_of_the_executor_are_those_that_the_metrics_count(recording):
    """As many, over as many elements, for as many rows."""
    runs = [run for device in recording.devices for run in device.runs]
    assert {run.error for run in runs} == {""}
    for model in served_models(recording):
        own = [run for run in runs if run.model == model.model]
        assert len(own) == model.runs
        if model.runs:
            assert sum(run.real_rows for run in own) == model.rows
        if model.padding is not None:
            ran = sum(math.prod(run.bucket) for run in own)
            first, last = recording.first, recording.last
            name = "ge_elements_run_total"
            assert ran == last.total(name, model=model.model) - first.total(name, model=model.model)


def test_runs_lie_inside_the_recording_and_one_lane_runs_one_at_a_time(recording):
    """The clocks of client and executor are one."""
    begin_ns, end_ns = (1e9 * reading.at_s for reading in (recording.first, recording.last))
    assert {device.missed for device in recording.devices} == {0}
    lanes = [
        [run for run in device.runs if run.lane == lane]
        for device in recording.devices
        for lane in {run.lane for run in device.runs}
    ]
    assert lanes
    for runs in lanes:
        own = sorted(runs, key=lambda run: run.started_ns)
        assert begin_ns <= own[0].came_ns
        assert own[-1].ended_ns <= end_ns
        assert all(a.ended_ns <= b.started_ns for a, b in pairwise(own))


def test_the_host_tells_percentiles_of_ensembles_too(recording):
    """They are longer than the runs that they wait for."""
    hosts = {host.model: host for host in host_latencies(recording)}
    assert hosts["text_classifier"].requests == REQUESTS
    assert set(hosts["text_classifier"].quantiles_ms) == {0.5, 0.9, 0.99}
    runs = [run for device in recording.devices for run in device.runs]
    (encoder,) = [
        run for run in run_latencies(runs) if run.model == "text_classifier_fused/text_encoder"
    ]
    assert hosts["text_classifier_fused"].quantiles_ms[0.5] > encoder.run_ms[0.5]


def test_the_page_has_them(recording):
    """One page, all models."""
    text = render(recording)
    assert "text_classifier_fused/text_encoder" in text
    assert text.count("<svg") == 8 + sum(bool(device.runs) for device in recording.devices)


def test_a_server_that_serves_nothing_meanwhile_is_told_so(server, recording, tmp_path, capsys):
    """One line, and no page."""
    out = tmp_path / "report.html"
    arguments = ["report", "--url", server.metrics, "--seconds", "1", "--output", str(out)]
    assert main(arguments) == 2
    assert "send requests meanwhile" in capsys.readouterr().err
    assert not out.exists()
