import threading

import pytest

from ge_backend.errors import ConfigError, ModelError
from ge_backend.metrics import Recorder
from ge_backend.serving.opening import open_model
from ge_backend.serving.warmup.measure import kept_costs, measured_anew
from ge_backend.serving.warmup.store import Store
from ge_backend.shapes.traffic.histogram import SizeHistogram
from ge_tools.model.offline import open_offline


def test_a_model_is_as_an_instance_would_see_it(model, cache):
    """Its settings, its layout, its grid, and the cache that the environment names."""
    with open_offline(model()) as opened:
        assert opened.config.name == "tiny"
        assert opened.layout.axes == ("length",)
        assert opened.grid.entries == ((1, 16), (1, 64), (8, 16), (8, 64))
        assert opened.store == Store(cache)
        assert kept_costs(opened) == {}
        assert measured_anew(opened).keys() == set(opened.grid.entries)
        assert kept_costs(opened).keys() == set(opened.grid.entries)


def test_recorded_traffic_decides_what_max_graphs_leaves(model, cache):
    """As at load, so that the command shows the grid that is served."""
    limit = 'parameters { key: "max_graphs" value { string_value: "2" } }\n'
    folder = model()
    (folder / "config.pbtxt").write_text((folder / "config.pbtxt").read_text() + limit)
    grids = []
    for size in (5, 60):
        traffic = {"rows": SizeHistogram(), "length": SizeHistogram()}
        traffic["rows"].add(8 if size == 5 else 1, 10_000 * size)
        traffic["length"].add(size, 10_000 * size)
        Store(cache).add_traffic("tiny", traffic)
        with open_offline(folder) as opened:
            grids.append(opened.grid.entries)
    assert grids == [((8, 16), (8, 64)), ((1, 64), (8, 64))]


def test_what_serving_measured_is_found(model, cache):
    """Costs depend on how many runs share the device: here as many as the model says."""
    folder = model()
    settings = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in (("lanes", 3), ("executor", "inline"))
    )
    (folder / "config.pbtxt").write_text((folder / "config.pbtxt").read_text() + settings)
    with open_offline(folder) as opened:
        config = opened.config
        assert kept_costs(opened) == {}
    pipeline, learner = open_model(config, Recorder(), Store(cache), on_restart=lambda _: None)
    learner.close()
    pipeline.close()
    with open_offline(folder) as opened:
        assert kept_costs(opened).keys() == set(opened.grid.entries)


@pytest.mark.parametrize("fails", [False, True])
def test_the_graph_is_freed_at_the_end(model, fails):
    """Also where the configuration turns out to be wrong: no thread of it is left."""
    folder = model()
    if fails:
        text = (folder / "config.pbtxt").read_text()
        (folder / "config.pbtxt").write_text(text.replace("buckets.length", "buckets.width"))
    before = set(threading.enumerate())
    try:
        with open_offline(folder):
            assert set(threading.enumerate()) - before
    except ConfigError:
        assert fails
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
    assert not set(threading.enumerate()) - before


def test_a_version_without_a_model_file(model):
    """The error says what was looked for."""
    folder = model()
    (folder / "1" / "model.null").unlink()
    with pytest.raises(ModelError, match=r"looked for model\.onnx"), open_offline(folder):
        pass
