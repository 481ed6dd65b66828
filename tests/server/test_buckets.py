"""Buckets on the real server: declared, read from a file, kept, extended and learned."""

import json
import queue
import re
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from builders.graphs import RAGGED, WIDTH, masked_mean, mean_of, parameters, write_model
from builders.metrics import metric
from builders.null_models import comes_true
from builders.servers import server_options
from ge_backend.serving.warmup.store import Store
from ge_tools.main import main
from ge_tools.tritonserver import TritonServer

MEAN = f"""
max_batch_size: 8
input [ {{ name: "ids" data_type: TYPE_INT64 {RAGGED} }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 2000 }}
"""
SUM = f"""
max_batch_size: 8
input [ {{ name: "x" data_type: TYPE_FP32 {RAGGED} }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape {{ shape: [ ] }} }} ]
dynamic_batching {{ max_queue_delay_microseconds: 2000 }}
"""
SMALL = {"buckets__rows": "1,4,8", "buckets__sequence": "8,32"}
STATIC = {"device": "null", "buckets__rows": "1,4,8", "buckets__length": "8,32"}
GOOD_FILE = "# rows, length\n([1, 4], [8, 32])\n(8, range(8, 24, 8))\n"
TROUBLES = {
    "bad_place": (GOOD_FILE + "(1, x)\n", "buckets.txt, line 4"),
    "bad_size": ("(1, 0)\n", "buckets.txt, line 1"),
    "bad_places": ("\n\n(1, 8, 8)\n", "buckets.txt, line 3"),
    "bad_empty": ("# nothing\n", "buckets.txt"),
    "bad_missing": (None, "buckets.txt"),
}
# The runs of a model that takes its time over each bucket, so that warm-up is what counts.
SLOW = {"*": 60.0}
LEARN_S = 120
# More would only wait in the server, which learns less the busier it is with old requests.
IN_FLIGHT = 120


def null_model(**changes):
    """Return a model for the null device: the sums of rows, with costs that grow with length."""
    model = {
        "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
        "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
        "axis_limits": {"length": 64},
        "static_shapes": True,
        "cost_ms": costs_ms(0.02),
    }
    return json.dumps({**model, **changes}).encode()


def costs_ms(each):
    """Return what runs of each bucket take, so many milliseconds for each unit of length."""
    return {f"{rows}x{length}": each * length for rows in (1, 4, 8) for length in range(65)}


def write_null(models, name, config="", **changes):
    write_model(models, name, SUM + config, null_model(**changes), "model.null")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A repository with a model for each ability."""
    models = tmp_path_factory.mktemp("models")
    declared = {"buckets__rows": "linear(1,4,8)", "buckets__sequence": "exponential(8,8,64,4)"}
    declared["warmup"] = "on"
    declared["threads"] = "1"  # else costs that the models below have kept may count for it
    write_model(models, "declared", MEAN + parameters(**declared), masked_mean())
    write_model(models, "extended", MEAN + parameters(overflow="extend", **SMALL), masked_mean())
    write_model(models, "unpadded", MEAN + parameters(**SMALL), masked_mean())
    write_null(models, "static", parameters(overflow="extend", **STATIC))
    # So long that a busy machine, which adds milliseconds to each, does not hide what is saved.
    learning = parameters(learn="serve", **STATIC)
    write_null(models, "learning", learning, cost_ms=costs_ms(0.2))
    slow = parameters(warmup="on", **STATIC)
    write_null(models, "slow", slow, static_shapes=False, cost_ms=SLOW)
    early = {"*": 61.0}  # another file, so that what was measured of the other one is not its own
    write_null(models, "early", parameters(**STATIC), static_shapes=False, cost_ms=early)
    from_file = parameters(device="null", buckets="file:buckets.txt")
    write_null(models, "from_file", from_file)
    (models / "from_file" / "buckets.txt").write_text(GOOD_FILE)
    for name, (text, _) in TROUBLES.items():
        write_null(models, name, from_file)
        if text is not None:
            (models / name / "buckets.txt").write_text(text)
    return models


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The folder that both servers keep costs and traffic in."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def begin(installation, models, cache, tmp_path_factory, server_logs):
    """A function that returns a server on the repository, not started yet."""

    def prepare(name):
        log = tmp_path_factory.mktemp("log") / "server.log"
        server_logs[f"the {name} server"] = log
        options = server_options(
            models,
            log_file=log,
            environment={"GE_CACHE_DIR": str(cache)},
            arguments=("--exit-on-error=false", "--strict-readiness=false"),
        )
        return TritonServer(installation, options)

    yield prepare
    server_logs.clear()


@pytest.fixture(scope="module")
def server(begin):
    """The first server, with nothing kept."""
    with begin("first") as running:
        yield running


def log_of(server, model, last):
    """Return what the model's backend has logged, once a line of it begins so.

    The host's log is written by another thread than the one that logs.
    """

    def logged():
        lines = server.options.log_file.read_text(errors="replace").splitlines()
        told = [line.split(f'"ge {model}: ', 1)[1] for line in lines if f'"ge {model}: ' in line]
        return [line.removesuffix('"') for line in told]

    assert comes_true(lambda: any(line.startswith(last) for line in logged())), logged()
    return logged()


def warmed(server, how):
    """Return the lines of the buckets that the warm-up of `slow` has run, measured or prepared."""
    logged = log_of(server, "slow", "warm-up took")
    return [line for line in logged if re.match(r"warm-up \d/\d ", line) and how in line]


def becomes(server, name, model, value, seconds=60.0):
    """Return whether a metric reaches a value within that time."""
    end = time.monotonic() + seconds
    while metric(server, name, model=model) < value and time.monotonic() < end:
        time.sleep(0.1)
    return metric(server, name, model=model) == value


def floats(length, value=1.0, rows=1):
    item = grpcclient.InferInput("x", [rows, length], "FP32")
    item.set_data_from_numpy(np.full((rows, length), value, np.float32))
    return [item]


def ids_of(length, rows=1):
    ids = np.arange(rows * length).reshape(rows, length) % 50
    item = grpcclient.InferInput("ids", [rows, length], "INT64")
    item.set_data_from_numpy(ids)
    return ids, [item]


def assert_mean(client, model, length):
    ids, inputs = ids_of(length)
    np.testing.assert_allclose(client.infer(model, inputs).as_numpy("y"), mean_of(ids), rtol=1e-5)


def test_each_axis_has_a_line_in_the_log(server):
    """The rule with its numbers, and what it made; then the whole grid."""
    logged = log_of(server, "declared", "warm-up took")
    assert "buckets: rows: linear(min=1, step=4, max=8) -> 1, 2, 4, 8" in logged
    assert (
        "buckets: sequence: exponential(min=8, step=8, max=64, limit=4) -> 8, 16, 32, 64" in logged
    )
    assert "buckets: 16 buckets (rows x sequence), the largest 8x64" in logged
    progress = [line for line in logged if re.match(r"warm-up \d+/16 rows=", line)]
    assert len(progress) == 16
    assert all(re.search(r" [\d.]+ ms.*, [\d.]+ GiB free$", line) for line in progress)
    assert progress[0].startswith("warm-up 1/16 rows=8 sequence=64 ")


def test_buckets_come_from_a_file(server, client):
    """Exactly those that it lists are prepared."""
    logged = "\n".join(log_of(server, "from_file", "warm-up took"))
    shapes = re.findall(r"warm-up \d/\d rows=(\d) length=(\d+)", logged)
    assert sorted((int(r), int(n)) for r, n in shapes) == [
        (1, 8), (1, 32), (4, 8), (4, 32), (8, 8), (8, 16)
    ]  # fmt: skip
    assert client.infer("from_file", floats(20)).as_numpy("y").tolist() == [[20.0]]


@pytest.mark.parametrize("name", TROUBLES)
def test_a_bucket_file_with_an_error_refuses_the_load(client, name):
    """The reason names the file and the line; the other models serve."""
    assert not client.is_model_ready(name)
    index = client.get_model_repository_index(as_json=True)["models"]
    reason = next(item["reason"] for item in index if item["name"] == name)
    assert f"{name}/{TROUBLES[name][1]}" in reason


def test_unplanned_shapes_are_logged_once_and_counted(server, client):
    """Each shape once in the log; each run in the counter."""
    for length in (40, 50, 40, 40, 7):
        assert_mean(client, "unpadded", length)
    assert becomes(server, "ge_unplanned_shapes_total", "unpadded", 4)
    logged = log_of(server, "unpadded", "no bucket covers sequence=50")
    told = [line for line in logged if "no bucket covers" in line]
    assert told == [f"no bucket covers sequence={n}: it runs at its own shape" for n in (40, 50)]


def test_an_oversized_request_gets_a_bucket_for_the_next_one(server, client):
    """It runs at its own shape itself; after the extension nothing is unplanned any more."""
    before = metric(server, "ge_buckets", model="extended")
    assert_mean(client, "extended", 50)
    assert becomes(server, "ge_grid_swaps_total", "extended", 1)
    assert metric(server, "ge_buckets", model="extended") > before
    assert metric(server, "ge_unplanned_shapes_total", model="extended") == 1
    for length in (50, 64, 8):
        assert_mean(client, "extended", length)
    assert becomes(server, "ge_requests_total", "extended", 4)
    assert metric(server, "ge_unplanned_shapes_total", model="extended") == 1
    line = "buckets are now sequence: list -> 8, 32, 64"
    assert line in log_of(server, "extended", line)


def test_a_static_engine_refuses_it_until_it_has_a_bucket(server, client):
    """INVALID_ARGUMENT at first, then an answer."""
    with pytest.raises(InferenceServerException, match="'length' is 50, the largest bucket is 32"):
        client.infer("static", floats(50))
    assert becomes(server, "ge_grid_swaps_total", "static", 1)
    assert metric(server, "ge_buckets", model="static") == 9
    for length in (50, 64, 8):
        assert client.infer("static", floats(length)).as_numpy("y").tolist() == [[float(length)]]


def test_grids_are_learned_under_load(server, client):
    """No request fails or is mixed up while the buckets change under it."""
    generator = np.random.default_rng(5)
    answers, sent, taken = queue.Queue(), {}, 0

    def take():
        number, result, error = answers.get(timeout=60)
        assert error is None, error
        assert result.as_numpy("y").tolist() == [[float(sent[number])]]

    end = time.monotonic() + LEARN_S
    swapped_at = 0
    while time.monotonic() < end and (not swapped_at or len(sent) < swapped_at + 200):
        for _ in range(40):
            number = len(sent)
            length = int(generator.choice([3, 10, 12, 32], p=[0.2, 0.4, 0.3, 0.1]))
            sent[number] = length * (number % 7)
            client.async_infer(
                "learning",
                floats(length, number % 7),
                lambda result, error, number=number: answers.put((number, result, error)),
            )
        while len(sent) - taken > IN_FLIGHT:
            take()
            taken += 1
        time.sleep(0.05)
        if not swapped_at and metric(server, "ge_grid_swaps_total", model="learning"):
            swapped_at = len(sent)
    for _ in range(len(sent) - taken):
        take()
    assert swapped_at, "no swap under load"
    assert log_of(server, "learning", "buckets are now length: list -> 12, 32")


def test_a_model_serves_before_its_buckets_are_measured(server, client):
    """Where any shape runs it begins with estimates, and measures them all beside serving."""
    assert client.infer("early", floats(20)).as_numpy("y").tolist() == [[20.0]]
    # A run of each, at least: what it was told at first is the time of one.
    assert comes_true(lambda: metric(server, "ge_warmup_seconds", model="early") > 6 * 0.06, 60)
    logged = log_of(server, "early", "warm-up 6/6")
    begun = logged.index("serving with 0 of 6 costs, the others are measured now")
    assert [i for i, line in enumerate(logged) if line.startswith("warm-up 1/6 ")] > [begun]
    assert len([line for line in logged if re.match(r"warm-up \d/6 .* ms, ", line)]) == 6
    assert client.infer("early", floats(20)).as_numpy("y").tolist() == [[20.0]]


def test_a_second_start_is_faster_and_traffic_outlives_the_first(
    begin, server, client, cache, capsys, models
):
    """Costs are kept, so little is run again; what was sent is there for `ge-backend tune`."""
    assert len(warmed(server, " ms, ")) == 6
    client.close()
    server.stop()
    recorded = Store(cache).traffic("learning")
    assert recorded["length"].total >= 200
    assert main(["tune", str(models / "learning"), "--cache-dir", str(cache), "--json"]) == 0
    tuned = json.loads(capsys.readouterr().out)
    assert tuned["axes"]["length"]["rows"] == recorded["length"].total

    with begin("second") as second:
        assert comes_true(lambda: metric(second, "ge_warmup_seconds", model="slow") > 0)
        assert warmed(second, " ms, ") == []  # seconds would be those of all that the machine does
        assert len(warmed(second, " prepared, ")) == 2
        for model in ("slow", "static"):
            assert log_of(second, model, "costs of 6 buckets are kept from an earlier start")
        assert log_of(second, "early", "serving with 6 of 6 costs")
        with grpcclient.InferenceServerClient(second.grpc) as again:
            assert again.infer("static", floats(20)).as_numpy("y").tolist() == [[20.0]]
