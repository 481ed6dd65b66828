"""Presets on the real server: each is applied to an example model, and takes effect."""

import shutil
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from prometheus_client.parser import text_string_to_metric_families

from builders.null_models import comes_true
from ge_tools.main import main
from ge_tools.model.presets import PRESETS

MODEL = "token_scores"
LENGTHS = (3, 40, 100)


@pytest.fixture(scope="module")
def models(made_models, tmp_path_factory):
    """The example model as it is, and once with each preset, under the preset's name."""
    repository = tmp_path_factory.mktemp("presets")
    for name in ("plain", *PRESETS):
        shutil.copytree(made_models / MODEL, repository / name)
        if name in PRESETS:
            assert main(["preset", str(repository / name), name]) == 0
    return repository


@pytest.fixture(scope="module")
def server(triton_server, models):
    """One server with all of them."""
    return triton_server(models)


def scores(client, model, length):
    given = grpcclient.InferInput("input_ids", [1, length], "INT64")
    given.set_data_from_numpy(np.arange(length, dtype=np.int64)[None])
    return client.infer(model, [given]).as_numpy("scores")


def figures(server, name, model):
    """Return the labels and values of a metric of a model."""
    with urllib.request.urlopen(server.metrics, timeout=30) as page:
        families = text_string_to_metric_families(page.read().decode())
    return [
        (sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if sample.name == name and sample.labels.get("model") == model
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_answers_are_those_of_the_plain_model(client, name):
    """A preset changes when and with whom a request runs, and nothing else."""
    for length in LENGTHS:
        expected = scores(client, "plain", length)
        np.testing.assert_allclose(scores(client, name, length), expected, atol=1e-5)


@pytest.mark.parametrize("name", PRESETS)
def test_the_host_sees_what_the_preset_says(client, name):
    """Its own fields, and the parameters that it hands to the backend."""
    config = client.get_model_config(name).config
    choices = PRESETS[name].choices
    count, delay = (
        choices[key].value
        for key in ("instance_group.count", "dynamic_batching.max_queue_delay_microseconds")
    )
    assert [group.count for group in config.instance_group] == [int(count)]
    assert config.HasField("dynamic_batching")
    assert config.dynamic_batching.max_queue_delay_microseconds == int(delay)
    changed = client.get_model_config("plain").config.parameters.keys() ^ config.parameters.keys()
    assert changed
    assert all(config.parameters[key].string_value == choices[key].value for key in changed)


@pytest.mark.parametrize("name", PRESETS)
def test_buckets_are_within_the_limit(server, client, name):
    """Those that are prepared are fewer where the preset limits their elements."""
    scores(client, name, 3)
    most = int(PRESETS[name].choices["max_elements"].value) or 16 * 128
    expected = sum(rows * size <= most for rows in (1, 4, 16) for size in (8, 32, 128))
    assert comes_true(lambda: [v for _, v in figures(server, "ge_buckets", name)] == [expected], 30)


@pytest.mark.parametrize("name", PRESETS)
def test_requests_wait_where_the_preset_says(server, client, name):
    """A bounded queue is the backend's own, and is counted there; without one Triton keeps it."""
    for length in LENGTHS:
        scores(client, name, length)
    bounded = PRESETS[name].choices["max_queue_size"].value != "0"
    metric = "ge_backlog_seconds_total" if bounded else "ge_requests_total"
    assert comes_true(lambda: figures(server, metric, name) != [], 30)
    assert bool(figures(server, "ge_backlog_seconds_total", name)) == bounded
