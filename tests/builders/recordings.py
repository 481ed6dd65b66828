"""Recordings made up, for the page of `ge-backend report`."""

from ge_backend.executor.protocol.messages import PastRun
from ge_tools.page.recording import Recording
from ge_tools.watch.executors import DeviceRuns
from ge_tools.watch.readings import Reading

MS = 1_000_000
SECOND = 1_000 * MS


def series(model, **values):
    """Return series of a model; keys are `name` or `name__label_value__…`."""
    found = {}
    for key, value in values.items():
        name, *labels = key.split("__")
        pairs = dict(label.rsplit("-", 1) for label in labels)
        found[name, tuple(sorted({"model": model, **pairs}.items()))] = float(value)
    return found


def look(at_s, **values):
    """Return one reading of a model called m; keys as those of `series`."""
    return Reading(at_s=at_s, values=series("m", **values))


BEFORE = look(
    10.0,
    **{
        "ge_requests_total": 100,
        "ge_rows_total": 200,
        "ge_batches_total": 50,
        "ge_elements_real_total": 1000,
        "ge_elements_run_total": 1200,
        "ge_sub_batches_total__bucket-4x8": 10,
        "ge_queue_seconds_total__device-cpu": 1.0,
        "ge_run_seconds_total__device-cpu": 5.0,
        "ge_planned_seconds_total__device-cpu": 4.0,
        "ge_plan_error_seconds_total__device-cpu": 1.0,
    },
)
AFTER = look(
    12.0,
    **{
        "ge_requests_total": 160,
        "ge_request_failures_total__status-INTERNAL": 2,
        "ge_rows_total": 320,
        "ge_batches_total": 70,
        "ge_elements_real_total": 2000,
        "ge_elements_run_total": 2700,
        "ge_sub_batches_total__bucket-4x8": 14,
        "ge_sub_batches_total__bucket-8x8": 16,
        "ge_sub_batches_total__bucket-1x8": 0,
        "ge_queue_seconds_total__device-cpu": 1.04,
        "ge_run_seconds_total__device-cpu": 7.0,
        "ge_planned_seconds_total__device-cpu": 6.0,
        "ge_plan_error_seconds_total__device-cpu": 1.1,
        "ge_engine_info__engine-openvino": 1,
        "ge_device_up__device-cpu": 1,
        "ge_device_outstanding_seconds__device-cpu": 0.25,
        "ge_workspace_pool_bytes__device-cpu": 1024,
        "ge_workspace_used_bytes__device-cpu": 128,
        "ge_workspace_peak_bytes__device-cpu": 512,
    },
)


def reading(at_s, share, model="encoder"):
    """Return metrics of a server that has done a share of its work: 100 requests when it is 1."""
    counters = {
        "ge_requests_total": 100,
        "ge_request_failures_total": 2,
        "ge_rows_total": 200,
        "ge_batches_total": 40,
        "ge_elements_real_total": 1000,
        "ge_elements_run_total": 1250,
        "ge_elements_longest_total": 3000,
        "ge_sub_batches_total__bucket-4x8": 30,
        "ge_sub_batches_total__bucket-4x64": 10,
        "ge_row_sizes_total__axis-sequence__up_to-8": 150,
        "ge_row_sizes_total__axis-sequence__up_to-16": 50,
        "ge_read_seconds_total": 0.1,
        "ge_plan_seconds_total": 0.2,
        "ge_stage_seconds_total": 0.3,
        "ge_wait_seconds_total": 1.0,
        "ge_split_seconds_total": 0.4,
        "ge_queue_seconds_total__device-cpu": 0.5,
        "ge_run_seconds_total__device-cpu": 0.8,
        "ge_planned_seconds_total__device-cpu": 0.5,
        "ge_plan_error_seconds_total__device-cpu": 0.04,
        "nv_inference_request_success_total": 98,
        "nv_inference_request_duration_us_total": 98 * 12_000,
        "nv_inference_queue_duration_us_total": 98 * 3_000,
    }
    gauges = {
        "ge_engine_info__engine-openvino": 1,
        "ge_device_up__device-cpu": 1,
        "ge_workspace_pool_bytes__device-cpu": 64 << 20,
        "ge_workspace_used_bytes__device-cpu": 16 << 20,
        "ge_workspace_peak_bytes__device-cpu": 32 << 20,
    }
    done = {name: share * value for name, value in counters.items()}
    return Reading(at_s=at_s, values=series(model, **done, **gauges))


def past_run(number, *, came_ms, started_ms, ended_ms, **changes):
    """Return a run of a bucket of 4 rows, 3 of them real; times since the recording began."""
    given = {
        "model": "encoder",
        "bucket": (4, 8),
        "real_rows": 3,
        "lane": "lane-0",
        "held_up_ns": 0,
        "error": "",
        **changes,
    }
    return PastRun(
        number=number,
        came_ns=int(10 * SECOND + came_ms * MS),
        started_ns=int(10 * SECOND + started_ms * MS),
        ended_ns=int(10 * SECOND + ended_ms * MS),
        **given,
    )


RUNS = (
    past_run(1, came_ms=0, started_ms=1, ended_ms=5),
    past_run(2, came_ms=2, started_ms=5, ended_ms=9, bucket=(4, 64), real_rows=4),
    past_run(3, came_ms=3, started_ms=3, ended_ms=4, lane="lane-1", error="GraphFailed"),
    past_run(4, came_ms=500, started_ms=500, ended_ms=700, bucket=(), real_rows=0),
)


def recording(model="encoder", **changes):
    """Return two seconds of a server: three readings, four runs."""
    given = {
        "url": "http://localhost:8002/metrics",
        "began_s": 1_700_000_000.0,
        "readings": (
            reading(10.0, 0, model),
            reading(11.0, 0.25, model),
            reading(12.0, 1, model),
        ),
        "devices": (DeviceRuns(device="cpu", pid=1, runs=RUNS, missed=0),),
        **changes,
    }
    return Recording(**given)


def text_reading(at_s, share, model="writer"):
    """Return metrics of a server that has generated a share of 800 tokens of 30 texts."""
    counters = {
        "ge_requests_total": 30,
        "ge_text_steps_total": 100,
        "ge_text_prompt_tokens_total": 200,
        "ge_text_generated_tokens_total": 800,
        "ge_text_computed_tokens_total": 1000,
        "ge_text_step_seconds_sum": 2.0,
        "ge_text_preempted_total__how-recomputed": 5,
        "ge_text_preempted_total__how-swapped_out": 2,
        "ge_text_preempted_total__how-swapped_in": 2,
        "ge_text_finished_total__reason-stop": 20,
        "ge_text_finished_total__reason-length": 10,
        "ge_text_adapter_loads_total": 6,
        "ge_text_adapter_evictions_total": 4,
        "ge_text_adapted_steps_total": 60,
        "ge_text_buckets_total__bucket-8x1x12": 90,
        "ge_text_buckets_total__bucket-1x64x4": 10,
        "ge_text_first_token_seconds_bucket__le-0.1": 15,
        "ge_text_first_token_seconds_bucket__le-0.2": 30,
        "ge_text_first_token_seconds_bucket__le-+Inf": 30,
        "ge_text_inter_token_seconds_bucket__le-0.01": 100,
        "ge_text_inter_token_seconds_bucket__le-0.02": 700,
        "ge_text_inter_token_seconds_bucket__le-0.05": 780,
        "ge_text_inter_token_seconds_bucket__le-+Inf": 800,
        "ge_run_seconds_total__device-cpu": 2.0,
    }
    gauges = {
        "ge_device_up__device-cpu": 1,
        "ge_text_running": 8,
        "ge_text_waiting": 3,
        "ge_text_swapped": 1,
        "ge_text_adapters": 2,
        "ge_text_adapter_bytes": 3 << 20,
        "ge_text_blocks_used": 25,
        "ge_text_blocks_free": 75,
    }
    done = {name: share * value for name, value in counters.items()}
    return Reading(at_s=at_s, values=series(model, **done, **gauges))
