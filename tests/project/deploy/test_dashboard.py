"""The dashboard shows metrics that exist, and the file is what the script writes."""

import json
import re

import pytest
from deploy.dashboard import FILE, PANELS, dashboard

from ge_backend.metrics import METRICS, Kind
from ge_tools.tritonserver.abilities import ABILITIES

NAMES = re.compile(r"\b(?:ge|nv)_\w+")
ROOT = FILE.parents[3]
# Triton's own: docs/user_guide/metrics.md of triton-inference-server/server.
HOST = {"nv_inference_queue_duration_us", "nv_inference_request_success"}
HOST_HISTOGRAMS = {"nv_inference_first_response_histogram_ms"}
HISTOGRAMS = HOST_HISTOGRAMS | {m.name for m in METRICS.values() if m.kind is Kind.HISTOGRAM}
# What Prometheus is told of each: github.com/prometheus/docs, content/docs/concepts.
SERIES = {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")}
KNOWN = (METRICS.keys() - HISTOGRAMS) | HOST | SERIES


def test_the_file_is_up_to_date():
    """`python deploy/dashboard.py` writes it anew."""
    assert json.loads(FILE.read_text()) == dashboard()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_every_metric_exists(panel):
    """A panel of a metric that was renamed would stay empty for ever."""
    names = {name for query in panel.queries.values() for name in NAMES.findall(query)}
    assert names
    assert names <= KNOWN


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_every_label_exists(panel):
    """A legend names what its query groups by, and that is a label of the metric."""
    for legend, query in panel.queries.items():
        shown = set(re.findall(r"{{(\w+)}}", legend))
        grouped = set(re.split(r",\s*", re.search(r"by \(([^)]*)\)", query)[1]))
        bounds = {"le"} if query.startswith("histogram_quantile(") else set()
        assert shown == grouped - bounds  # or lines of several models could not be told apart
        assert bounds <= grouped  # without the bounds of the buckets there is no quantile
        for name in NAMES.findall(query):
            known = {
                *(bounds if name.endswith("_bucket") else ()),
                "model",
                "version",
                "device",
                "step",
                *getattr(METRICS.get(name), "labels", ()),
            }
            assert grouped <= known


def test_steps_are_shown_by_their_time_and_not_by_the_load():
    """Seconds of a step per second grow with the traffic; per batch they are the step's own."""
    (panel,) = [panel for panel in PANELS if "ge_step_seconds" in str(panel.queries)]
    (query,) = panel.queries.values()
    steps, batches = query.split(" / on (model) group_left ")
    assert "ge_step_seconds_total" in steps
    assert "ge_batches_total" in batches


def test_first_responses_are_shown_by_the_server_and_by_the_texts():
    """Triton's histogram wants a release and a switch, which the page names; ours is always on."""
    for histogram in ("nv_inference_first_response_histogram_ms", "ge_text_first_token_seconds"):
        (panel,) = [panel for panel in PANELS if histogram in str(panel.queries)]
        assert panel.unit == ("ms" if histogram.endswith("_ms") else "s")
        quantile, mean = panel.queries.values()
        assert quantile.startswith(f"histogram_quantile(0.95, sum by (model, le) (rate({histogram}")
        assert f"{histogram}_sum" in mean.partition(" / ")[0]
        assert f"{histogram}_count" in mean.partition(" / ")[2]
    needs = ABILITIES["first_response"]
    page = (ROOT / "docs" / "deploy.md").read_text()
    assert f"from {'.'.join(map(str, needs.since))} ({needs.container}) on" in page
    assert "--metrics-config=histogram_latencies=true" in page


def test_models_are_listed_by_a_metric_that_exists():
    """By which the variable at the top finds them."""
    (variable,) = dashboard()["templating"]["list"]
    assert set(NAMES.findall(variable["query"])) <= METRICS.keys()


def test_panels_do_not_overlap():
    """Each has its own place."""
    places = [tuple(panel["gridPos"].values()) for panel in dashboard()["panels"]]
    assert len(set(places)) == len(places)


def test_every_alert_is_of_metrics_that_exist():
    """Those of docs/deploy.md: one of a metric that was renamed would be quiet for ever."""
    section = (ROOT / "docs" / "deploy.md").read_text().partition("deserve an alert:")[2]
    up, *others = re.findall(r"(?m)^\| `(.+?)` \|", section)
    (job,) = re.findall(r"job_name: (\w+)", (ROOT / "deploy" / "prometheus.yml").read_text())
    assert up == f'up{{job="{job}"}} == 0'
    assert len(others) == 6
    for alert in others:
        names = set(NAMES.findall(alert))
        assert names
        assert names <= KNOWN
        for name, label in re.findall(r"(\w+)\{(\w+)", alert):
            assert label in {"model", *METRICS[name].labels}
