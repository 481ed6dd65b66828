"""Writes the Grafana dashboard: `python deploy/dashboard.py`; a test holds the file against it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PANELS", "Panel", "dashboard", "main"]

FILE = Path(__file__).parent / "grafana" / "dashboards" / "ge.json"
WIDTH, HEIGHT, COLUMNS = 8, 7, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph: PromQL by legend; `$model` is what is chosen at the top."""

    title: str
    unit: str
    queries: dict[str, str]


def _rate(name: str, by: str = "model") -> str:
    return f'sum by ({by}) (rate({name}{{model=~"$model"}}[$__rate_interval]))'


def _to_first(histogram: str) -> dict[str, str]:
    """Return the queries of a histogram of times: what 95 of 100 requests keep to, and the mean."""
    buckets = _rate(f"{histogram}_bucket", "model, le")
    return {
        "{{model}} 95 %": f"histogram_quantile(0.95, {buckets})",
        "{{model}} mean": f"{_rate(f'{histogram}_sum')} / {_rate(f'{histogram}_count')}",
    }


PANELS = (
    Panel(
        title="Requests",
        unit="reqps",
        queries={
            "{{model}}": _rate("ge_requests_total"),
            "{{model}} failed, {{status}}": _rate("ge_request_failures_total", "model, status"),
        },
    ),
    Panel(
        title="Rows per batch",
        unit="short",
        queries={"{{model}}": f"{_rate('ge_rows_total')} / {_rate('ge_batches_total')}"},
    ),
    Panel(
        title="Cost of a request, by stage",
        unit="s",
        queries={
            f"{{{{model}}}} {what}": (
                f"{_rate(f'ge_{what}_seconds_total')} / {_rate('ge_requests_total')}"
            )
            for what in ("read", "plan", "stage", "queue", "run", "split")
        },
    ),
    Panel(
        title="Padding: elements run for each real one",
        unit="short",
        queries={
            "{{model}}": f"{_rate('ge_elements_run_total')} / {_rate('ge_elements_real_total')}",
            "{{model}} padded to the longest": (
                f"{_rate('ge_elements_longest_total')} / {_rate('ge_elements_real_total')}"
            ),
        },
    ),
    Panel(
        title="Buckets in use",
        unit="ops",
        queries={"{{model}} {{bucket}}": _rate("ge_sub_batches_total", "model, bucket")},
    ),
    Panel(
        title="Rows by size",
        unit="ops",
        queries={
            "{{model}} {{axis}} up to {{up_to}}": _rate("ge_row_sizes_total", "model, axis, up_to")
        },
    ),
    Panel(
        title="Shapes outside every bucket",
        unit="ops",
        queries={"{{model}}": _rate("ge_unplanned_shapes_total")},
    ),
    Panel(
        title="Work that waits on each device",
        unit="s",
        queries={"{{device}}": "max by (device) (ge_device_outstanding_seconds)"},
    ),
    Panel(
        title="Devices in use",
        unit="short",
        queries={"{{device}}": "min by (device) (ge_device_up)"},
    ),
    Panel(
        title="Executors found dead",
        unit="short",
        queries={"{{model}}": _rate("ge_executor_restarts_total")},
    ),
    Panel(
        title="Live sequences",
        unit="short",
        queries={
            "{{model}}": 'sum by (model) (ge_sequences_live{model=~"$model"})',
            "{{model}} {{event}} per second": _rate("ge_sequences_total", "model, event"),
        },
    ),
    Panel(
        title="Steps of fused ensembles: time of each per batch",
        unit="s",
        queries={
            "{{model}} {{step}}": f"{_rate('ge_step_seconds_total', 'model, step')} "
            f"/ on (model) group_left {_rate('ge_batches_total')}"
        },
    ),
    Panel(
        title="Triton: time in the host's queue",
        unit="µs",
        queries={
            "{{model}}": f"{_rate('nv_inference_queue_duration_us')} / "
            f"{_rate('nv_inference_request_success')}"
        },
    ),
    Panel(
        title="Texts: time to the first token",
        unit="s",
        queries=_to_first("ge_text_first_token_seconds"),
    ),
    # Empty where the server is older, or runs without it: docs/deploy.md.
    Panel(
        title="Triton: time to the first response",
        unit="ms",
        queries=_to_first("nv_inference_first_response_histogram_ms"),
    ),
)


def dashboard() -> dict[str, object]:
    """Return the dashboard as Grafana reads it."""
    return {
        "uid": "ge-backend",
        "title": "ge backend",
        "schemaVersion": 39,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {"list": [_model_variable()]},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _model_variable() -> dict[str, object]:
    return {
        "name": "model",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "query": "label_values(ge_requests_total, model)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, object]:
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def main() -> None:
    """Write the file that Grafana is given."""
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
