import json

import pytest

from builders.graphs import masked_mean
from builders.histograms import histogram_of
from ge_backend.serving.warmup.measure import cost_key
from ge_backend.serving.warmup.store import Store
from ge_tools.model.offline import open_offline

TWO_AXES = """\
backend: "ge"
max_batch_size: 4
parameters { key: "device" value { string_value: "null" } }
parameters { key: "max_length" value { string_value: "64" } }
"""


@pytest.fixture
def recorded(model, cache):
    """A model with traffic: most rows have size 20, a few 40."""
    folder = model()
    traffic = {"rows": histogram_of({8: 10}), "length": histogram_of({20: 70, 40: 10})}
    Store(cache).add_traffic("tiny", traffic)
    return folder


@pytest.fixture
def trace(tmp_path):
    def write(text):
        path = tmp_path / "trace.txt"
        path.write_text(text)
        return path

    return write


def test_sizes_follow_recorded_traffic(recorded, ge_backend):
    """As many sizes as now, the largest one kept, and what that saves in elements."""
    code, out, err = ge_backend("tune", recorded, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["model"], found["cost_unit"], found["diff"]) == ("tiny", "elements", None)
    assert found["parameters"] == {"buckets.length": "20,64"}
    axis = found["axes"]["length"]
    assert axis["rows"] == 80
    assert axis["now"]["boundaries"] == [16, 64]
    assert axis["now"]["elements_per_row"] == 64
    assert axis["proposed"]["elements_per_row"] == (70 * 20 + 10 * 64) / 80
    assert axis["proposed"]["saved"] == pytest.approx(1 - 25.5 / 64)
    assert [option["boundaries"] for option in axis["others"]] == [[20, 40, 64]]


def test_a_linked_folder_has_the_traffic_of_its_own_name(recorded, ge_backend):
    """As the server records it; that of what the link leads to would be another model's."""
    store = recorded.rename(recorded.with_name("v3"))
    recorded.symlink_to(store)
    code, out, _ = ge_backend("tune", recorded, "--json")
    assert (code, json.loads(out)["model"]) == (0, "tiny")
    assert "no traffic of model 'v3' is recorded" in ge_backend("tune", store)[2]


def test_measured_costs_decide_where_there_are_any(recorded, ge_backend):
    """A graph that takes no less time below 64 gains nothing from smaller sizes."""
    with open_offline(recorded) as opened:
        costs = {(rows, size): 1e6 * rows for rows in (1, 8) for size in (16, 64)}
        opened.store.keep_costs(cost_key(opened), costs)
    found = json.loads(ge_backend("tune", recorded, "--json")[1])
    assert found["cost_unit"] == "ns"
    assert found["axes"]["length"]["now"]["cost_per_row"] == pytest.approx(1e6)
    assert found["parameters"] == {"buckets.length": "64"}


def test_a_report_to_read(recorded, ge_backend):
    """Traffic, basis of the costs, a line per number of sizes, and the line to paste."""
    _, out, _ = ge_backend("tune", recorded, "--graphs", 3)
    lines = out.splitlines()
    assert lines[0].startswith("model tiny: traffic from ")
    assert lines[1].startswith("costs: elements: ")
    assert "length: 80 rows of size 20 to 40, 22.5 on average" in lines
    table = [line.split() for line in lines if "%" in line]
    assert table[0] == ["now", "2", "64.8%", "64.0", "64.0", "16,64"]
    assert table[1] == ["2", "11.8%", "25.5", "25.5", "60.2%", "20,64"]
    assert table[2] == ["proposed", "3", "0.0%", "22.5", "22.5", "64.8%", "20,40,64"]
    assert table[3] == ["no", "padding", "0.0%", "22.5", "22.5", "64.8%"]
    assert lines[-1] == ('parameters { key: "buckets.length" value { string_value: "20,40,64" } }')
    assert "note: here this engine runs any shape" not in out


def test_an_engine_that_runs_any_shape_is_told_apart(model, trace, ge_backend):
    """There rows are not padded to buckets, so the figures are not its own."""
    folder = model(static_shapes=False, config=TWO_AXES)
    _, out, err = ge_backend("tune", folder, "--trace", trace("5\n"))
    assert (out, err.count("\n")) == ("", 1)
    assert "pads no axis" in err
    ragged = 'input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }'
    (folder / "config.pbtxt").write_text(f"{TWO_AXES}{ragged}\n")
    _, out, _ = ge_backend("tune", folder, "--trace", trace("5\n"))
    assert "note: here this engine runs any shape" in out


ALONE = """\
backend: "ge"
max_batch_size: 0
parameters { key: "device" value { string_value: "null" } }
"""


@pytest.mark.parametrize(
    ("config", "dims", "said"),
    [
        (TWO_AXES, ("batch", 3), "every size of its inputs is fixed"),
        (ALONE, ("batch", "length"), "it does not batch (max_batch_size: 0)"),
        (TWO_AXES, ("batch", "length"), "mark an input allow_ragged_batch"),
    ],
)
def test_why_nothing_is_padded_is_said(model, trace, ge_backend, config, dims, said):
    """Only where lengths may differ in a batch is there something to mark."""
    folder = model(static_shapes=False, config=config, dims=dims)
    err = ge_backend("tune", folder, "--trace", trace("5\n"))[2]
    assert f"pads no axis, so it has no sizes to tune; {said}" in err


def test_apply_changes_one_parameter(recorded, ge_backend):
    """Comments stay; a second time there is nothing to change; the model then has the sizes."""
    file = recorded / "config.pbtxt"
    before = file.read_text()
    _, out, _ = ge_backend("tune", recorded, "--apply")
    assert file.read_text() == before.replace("16,64", "20,64")
    assert '-parameters { key: "buckets.length" value { string_value: "16,64" } }' in out
    assert out.endswith(
        "applied; start the server again to use them, or, where clients may load models: "
        "curl -X POST localhost:8000/v2/repository/models/tiny/load\n"
    )
    _, out, _ = ge_backend("tune", recorded, "--apply")
    assert out.endswith("config.pbtxt has these sizes already\n")
    assert json.loads(ge_backend("buckets", "--model", recorded, "--json")[1])["axes"] == {
        "rows": [1, 8],
        "length": [20, 64],
    }


def test_what_saves_little_is_not_applied(recorded, ge_backend):
    """As a server with `learn: serve` would not; it is printed, and applied if it was asked for."""
    file = recorded / "config.pbtxt"
    before = file.read_text().replace("16,64", "21,64")
    file.write_text(before)
    code, out, _ = ge_backend("tune", recorded, "--apply")
    assert (code, file.read_text()) == (0, before)
    assert 'string_value: "20,64"' in out
    assert out.endswith(
        "nothing is applied: less than 5% would be saved; with --graphs it is, whatever it saves\n"
    )
    _, out, _ = ge_backend("tune", recorded, "--apply", "--graphs", 2)
    assert file.read_text() == before.replace("21,64", "20,64")


def test_sizes_of_an_engine_that_runs_any_shape_go_by_elements(model, cache, ge_backend):
    """They are points to measure there, so a graph that takes no less time for less moves none."""
    ragged = 'input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }'
    folder = model(static_shapes=False, config=TWO_AXES + ragged)
    traffic = {"rows": histogram_of({4: 10}), "length": histogram_of({20: 70, 40: 10})}
    Store(cache).add_traffic("tiny", traffic)
    with open_offline(folder) as opened:
        opened.store.keep_costs(cost_key(opened), dict.fromkeys(opened.grid.entries, 1e6))
    found = json.loads(ge_backend("tune", folder, "--json")[1])
    assert found["cost_unit"] == "elements"
    assert found["parameters"] == {"buckets.length": "20,40,64"}


def test_every_axis_gets_its_own(model, trace, ge_backend):
    """A model with two ragged axes gets two parameters, which were not there before."""
    folder = model(config=TWO_AXES, dims=("batch", "query", "doc"))
    lines = ['{"rows": 3, "sizes": {"query": 4, "doc": 50}}', '{"sizes": {"query": 9, "doc": 60}}']
    path = trace("\n".join(lines))
    found = json.loads(ge_backend("tune", folder, "--trace", path, "--graphs", 3, "--json")[1])
    assert found["parameters"] == {"buckets.query": "4,9,64", "buckets.doc": "50,60,64"}
    assert found["source"] == str(path)
    ge_backend("tune", folder, "--trace", path, "--graphs", 3, "--apply")
    assert (folder / "config.pbtxt").read_text().startswith(TWO_AXES)
    assert len(json.loads(ge_backend("buckets", "--model", folder, "--json")[1])["buckets"]) == 27


def test_traffic_beyond_the_buckets_is_covered(model, trace, ge_backend):
    """The report says how much of it there is; the sizes reach it."""
    path = trace("20\n20\n20\n100\n")
    _, out, _ = ge_backend("tune", model(), "--trace", path)
    assert "25.0% are beyond the largest bucket" in out
    assert 'string_value: "20,100"' in out


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ((), "no traffic of model 'tiny' is recorded in "),
        (("--graphs", "0", "--trace", "good"), "0 boundaries"),
        (("--trace", "missing"), "missing cannot be read"),
        (("--trace", "bad"), "bad, line 2: 'five': expected a size or a request"),
        (("--device", "npu:x"), "device 'npu:x' is unknown"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(model, ge_backend, tmp_path, monkeypatch, extra, said):
    """The exit code is 2, and nothing is printed as a result."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").write_text("5\n")
    (tmp_path / "bad").write_text("5\nfive\n")
    code, out, err = ge_backend("tune", model(), *extra)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_how_traffic_is_recorded_is_said(model, ge_backend, monkeypatch):
    """With the cache off there is no file to name, and the way out is the same."""
    folder = model()
    assert "learn=record" in ge_backend("tune", folder)[2]
    monkeypatch.setenv("GE_CACHE_DIR", "off")
    assert "(GE_CACHE_DIR is off)" in ge_backend("tune", folder)[2]


def test_another_cache(recorded, ge_backend, cache, monkeypatch):
    """--cache-dir comes before the environment."""
    monkeypatch.setenv("GE_CACHE_DIR", "off")
    assert ge_backend("tune", recorded, "--cache-dir", cache)[0] == 0


def test_what_the_graph_refuses_is_left_out(model, trace, ge_backend):
    """Longer rows never ran; they are counted, and move no size."""
    folder = model(axis_limits={"length": 50})
    _, out, _ = ge_backend("tune", folder, "--trace", trace("20\n20\n70\n"))
    assert "left out: 1 rows" in out
    assert 'string_value: "20,50"' in out
    code, _, err = ge_backend("tune", folder, "--trace", trace("70\n"))
    assert code == 2
    assert "within the graph's limit of 50" in err


@pytest.mark.parametrize("command", ["tune", "buckets --model"])
def test_an_ensemble_has_steps_instead(model, ge_backend, command):
    """They are named, as they are where a preset is to be applied."""
    steps = 'step { model_name: "words" } step { model_name: "encoder" }'
    folder = model(config=f'platform: "ensemble" ensemble_scheduling {{ {steps} }}')
    code, _, err = ge_backend(*command.split(), folder)
    assert code == 2
    assert "is an ensemble, which runs nothing itself; expected the folder of one of" in err
    assert "words, encoder" in err


@pytest.mark.parametrize("command", ["tune", "buckets --model"])
def test_a_fused_ensemble_has_steps_instead(model, ge_backend, command):
    """As the ensemble itself; it has no model file that could be missing."""
    fused = 'backend: "ge" parameters { key: "fuse" value { string_value: "both" } }'
    folder = model(config=fused)
    (folder / "1" / "model.null").unlink()
    steps = 'step { model_name: "words" } step { model_name: "encoder" }'
    (folder.parent / "both").mkdir()
    (folder.parent / "both" / "config.pbtxt").write_text(f"ensemble_scheduling {{ {steps} }}")
    code, out, err = ge_backend(*command.split(), folder)
    assert (code, out) == (2, "")
    assert "runs the ensemble 'both' and has no graph of its own" in err
    assert "expected the folder of one of its steps: words, encoder" in err


@pytest.mark.parametrize("command", ["tune", "buckets --model"])
def test_a_model_that_writes_text_has_none(model, ge_backend, command):
    """Its buckets follow from its cache, which is made at load."""
    folder = model()
    for graph in (folder / "1").glob("model.*"):  # else that is served
        graph.unlink()
    (folder / "1" / "config.json").write_text('{"model_type": "llama"}')
    code, _, err = ge_backend(*command.split(), folder)
    assert code == 2
    assert "writes text, which has no buckets before it is served" in err


def test_a_bucket_file_is_not_overruled(model, trace, ge_backend):
    """Both together would not load, so the command does not write that."""
    config = 'backend: "ge"\nmax_batch_size: 8\n' + "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in (("device", "null"), ("buckets", "file:buckets.txt"))
    )
    folder = model(config=config)
    (folder / "buckets.txt").write_text("(1, [16, 64])\n")
    path = trace("20\n")
    assert ge_backend("tune", folder, "--trace", path)[0] == 0
    code, _, err = ge_backend("tune", folder, "--trace", path, "--apply")
    assert code == 2
    assert "remove the parameter 'buckets'" in err
    assert (folder / "config.pbtxt").read_text() == config


def test_the_shapes_of_a_file_are_not_overruled(model, trace, ge_backend):
    """A file that was compiled for its shapes runs in no others."""
    config = TWO_AXES.replace("max_batch_size: 4", "max_batch_size: 8")
    folder = model(config=config, fixed_shapes=[{"x": [8, 64]}, {"x": [8, 128]}])
    path = trace("20\n30\n")
    assert ge_backend("tune", folder, "--trace", path)[0] == 0
    code, out, err = ge_backend("tune", folder, "--trace", path, "--apply")
    assert (code, out) == (2, "")
    assert "runs only in the shapes that it was compiled for" in err
    assert (folder / "config.pbtxt").read_text() == config


def test_gears_are_not_overruled(model, trace, ge_backend):
    """Both together would not load."""
    config = TWO_AXES + "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in (("ge.inputShape", "x:-1,-1"), ("ge.dynamicDims", "1,16;4,128"))
    )
    folder = model(config=config)
    path = trace("20\n30\n")
    assert ge_backend("tune", folder, "--trace", path)[0] == 0
    code, out, err = ge_backend("tune", folder, "--trace", path, "--apply")
    assert (code, out) == (2, "")
    assert "the gears of 'ge.dynamicDims'; remove that parameter" in err
    assert (folder / "config.pbtxt").read_text() == config


def test_sizes_that_would_not_load_are_not_written(model, trace, ge_backend):
    """Here one row alone would be above the limit of elements."""
    config = TWO_AXES + 'parameters { key: "max_elements" value { string_value: "64" } }\n'
    folder = model(config=config)
    code, out, err = ge_backend("tune", folder, "--trace", trace("20\n1500\n"), "--apply")
    assert (code, out) == (2, "")
    assert "would not load with these sizes: parameter 'max_elements': bucket 1x1500 has" in err
    assert (folder / "config.pbtxt").read_text() == config


@pytest.fixture
def encoder(tmp_path, cache):
    """A model of an ONNX file, which two engines run."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    folder = tmp_path / "repository" / "encoder"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(masked_mean())
    (folder / "config.pbtxt").write_text('backend: "ge"\nmax_batch_size: 4  # rows\n')
    return folder


def test_engines_and_precisions_are_measured_as_served(encoder, ge_backend):
    """All that are installed, under made-up lengths; the file has what was found to be faster."""
    asked = ("--measure", "--seconds", "0.3", "--at-once", "4", "--device", "cpu")
    code, out, err = ge_backend("tune", encoder, *asked, "--apply", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert "4 requests at once for 0.3 s; log-normal lengths" in found["load"]
    ways = {(w["parameters"]["engine"], w["parameters"]["precision"]): w for w in found["ways"]}
    assert next(iter(ways)) == ("onnxruntime", "origin")
    assert {("openvino", "origin"), ("openvino", "bf16"), ("openvino", "int8")} <= ways.keys()
    assert ways["onnxruntime", "origin"]["requests_per_s"] > 0
    assert ways["openvino", "origin"]["requests_per_s"] > 0
    written = (encoder / "config.pbtxt").read_text()
    assert written.startswith('backend: "ge"\nmax_batch_size: 4  # rows\n')
    for key, value in found["parameters"].items():
        assert f'key: "{key}" value {{ string_value: "{value}" }}' in written
    assert bool(found["parameters"]) == bool(found["diff"])


def test_a_precision_that_is_named_is_chosen(encoder, ge_backend):
    """It is measured beside what serves now, and set where anything is computed in it at all."""
    from ge_backend.engines.ov.model import has_bf16

    asked = ("--measure", "--seconds", "0.3", "--precision", "bf16", "--device", "cpu", "--apply")
    _, out, _ = ge_backend("tune", encoder, *asked)
    assert "onnxruntime (now)" in out
    written = 'key: "precision" value { string_value: "bf16" }'
    assert (written in (encoder / "config.pbtxt").read_text()) == has_bf16()
    assert ("bf16 (as origin)" in out) == (not has_bf16())


def test_better_sizes_of_the_best_way_are_measured_too(recorded, ge_backend):
    """Of recorded traffic; longer runs for more padding make them faster, so they are applied."""
    costs = {
        f"{rows}x{size}": 2.0 if size < 64 else 20.0 for rows in (1, 8) for size in (16, 20, 64)
    }
    document = json.loads((recorded / "1" / "model.null").read_text())
    (recorded / "1" / "model.null").write_text(json.dumps({**document, "cost_ms": costs}))
    _, out, _ = ge_backend("tune", recorded, "--measure", "--seconds", "0.5", "--apply")
    assert "lengths from " in out
    assert "the device (now)  origin     as now" in out
    assert (
        'key: "buckets.length" value { string_value: "20,64" }'
        in (recorded / "config.pbtxt").read_text()
    )


def test_an_option_of_sizes_alone(recorded, ge_backend):
    """It would change nothing of what is measured."""
    code, out, err = ge_backend("tune", recorded, "--measure", "--graphs", "2")
    assert (code, out) == (2, "")
    assert "--graphs is of sizes alone" in err
