"""What would be compiled for a model, without a device."""

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from builders.graphs import masked_mean, parameters, write_model
from ge_backend.errors import ConfigError, ModelError
from ge_backend.serving.warmup.store import Store
from ge_backend.shapes.traffic.histogram import SizeHistogram
from ge_tools.model.ahead import look_ahead

GRID = parameters(buckets__rows="1,8", buckets__sequence="16,64")


@pytest.fixture
def ahead(tmp_path):
    """Return a function that writes a model and looks ahead."""

    def look(config=GRID, model=None, filename="model.onnx", options=()):
        write_model(tmp_path, "m", config, model or masked_mean(), filename)
        return look_ahead(tmp_path / "m", soc="Ascend910B3", options=options, cache_dir=tmp_path)

    return look


def test_a_request_has_every_bucket_of_the_grid(ahead):
    """With the shapes of all inputs, and what the file says of them."""
    found = ahead()
    assert (found.name, found.request.soc) == ("m", "Ascend910B3")
    assert found.grid.entries == ((1, 16), (1, 64), (8, 16), (8, 64))
    assert [dict(shapes) for shapes in found.request.shapes] == [
        {"ids": bucket, "attention_mask": bucket} for bucket in found.grid.entries
    ]
    assert [spec.name for spec in found.request.inputs] == ["ids", "attention_mask"]
    assert (found.request.precision, found.request.options) == ("origin", ())


def test_recorded_traffic_decides_what_max_graphs_leaves(ahead, tmp_path):
    """As when a server loads it, else it would look for another file."""
    traffic = {"rows": SizeHistogram(), "sequence": SizeHistogram()}
    traffic["rows"].add(1, 1000)
    traffic["sequence"].add(60, 1000)
    Store(tmp_path).add_traffic("m", traffic)
    assert ahead(GRID + parameters(max_graphs="2")).grid.entries == ((1, 64), (8, 64))


@pytest.mark.parametrize(("most", "warned"), [("0", False), ("2", True)])
def test_damaged_traffic_is_as_good_as_none(ahead, tmp_path, caplog, most, warned):
    """As when a server loads it, which warns where traffic would have decided something."""
    damaged = Store(tmp_path).traffic_path("m")
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    assert len(ahead(GRID + parameters(max_graphs=most)).grid.entries) == (2 if warned else 4)
    assert ("buckets are chosen without traffic" in caplog.text) == warned


def test_options_given_come_before_those_of_the_configuration(ahead):
    """Sorted, so that their order makes no other request."""
    config = GRID + parameters(ge__aicoreNum="1|1", atc__oo_level="O1")
    found = ahead(config, options=(("ge.aicoreNum", "2|2"), ("atc.log", "error")))
    assert found.request.options == (
        ("atc.log", "error"),
        ("atc.oo_level", "O1"),
        ("ge.aicoreNum", "2|2"),
    )


def test_a_file_of_another_name(ahead):
    """As `default_model_filename` says."""
    found = ahead(GRID + 'default_model_filename: "net.onnx"\n', filename="net.onnx")
    assert found.request.model.name == "net.onnx"


@pytest.mark.parametrize(
    ("config", "filename"), [("", "model.pt2"), ('default_model_filename: "a.om"\n', "a.om")]
)
def test_other_kinds_of_files_are_not_compiled(ahead, config, filename):
    """The message names the file that is missing."""
    with pytest.raises(ConfigError, match=r"ONNX is compiled, and there is no .*/(model|a)\.onnx"):
        ahead(config, filename=filename)


def test_a_file_that_is_no_model(ahead):
    """The reader's words."""
    with pytest.raises(ModelError, match="cannot load it"):
        ahead(model=b"not a model")
