"""`ge-backend compile` with a fake compiler: what is compiled, found again, printed and copied."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto

from acl_simulator import Affine, ChannelMeans, Simulator
from builders.cann import fake_cann, runs_of_atc
from builders.graphs import masked_mean, parameters, plus_one, token_rows, write_model
from builders.simulated_onnx import onnx_of
from ge_backend.model.files.om_files import read_axes
from ge_backend.serving.warmup.measure import measured_anew
from ge_tools.model.offline import open_offline

CONFIG = "max_batch_size: 4\n" + parameters(buckets__rows="1,4", buckets__sequence="8,16")


@pytest.fixture(autouse=True)
def machine(tmp_path, cache, monkeypatch):
    """CANN without an NPU, and a cache of this test's own."""
    monkeypatch.setenv("ASCEND_HOME_PATH", str(fake_cann(tmp_path / "cann")))
    monkeypatch.setenv("FAKE_ATC_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("FAKE_ATC", raising=False)
    monkeypatch.setitem(sys.modules, "acl", None)


@pytest.fixture
def runs(tmp_path):
    """Return a function that gives the command lines of the compiler so far."""
    return lambda: [run["arguments"] for run in runs_of_atc(tmp_path / "runs")]


@pytest.fixture
def folder(tmp_path):
    """An encoder with four buckets."""
    write_model(tmp_path / "models", "encoder", CONFIG, masked_mean())
    return tmp_path / "models" / "encoder"


@pytest.fixture
def compiled(ge_backend):
    """Return a function that compiles models and returns what --json says of them."""

    def run(*arguments):
        code, out, _ = ge_backend("compile", "--soc-version=Ascend910B3", "--json", *arguments)
        assert code == 0
        return json.loads(out)

    return run


def test_all_buckets_of_a_model_become_one_file(folder, compiled, runs, cache):
    """Its configuration's, in the cache where a server looks; the second time it is found."""
    (first,) = compiled(folder)
    (second,) = compiled(folder)
    assert (first["model"], first["axes"]) == ("encoder", ["rows", "sequence"])
    assert first["buckets"] == [[1, 8], [1, 16], [4, 8], [4, 16]]
    assert first["file"].startswith(str(cache / "compiled"))
    assert (first["cached"], second["cached"]) == (False, True)
    assert second["file"] == first["file"]
    (line,) = runs()
    assert "--input_shape=ids:-1,-1;attention_mask:-1,-1" in line
    assert "--dynamic_dims=1,8,1,8;1,16,1,16;4,8,4,8;4,16,4,16" in line


def test_what_is_printed(folder, ge_backend, tmp_path):
    """A line per model, and what the cache holds."""
    write_model(tmp_path / "models", "tokens", CONFIG, token_rows())
    other = tmp_path / "models" / "tokens"
    ge_backend("compile", "--soc-version=Ascend910B3", folder)
    code, out, err = ge_backend("compile", "--soc-version=Ascend910B3", folder, other)
    assert code == 0
    header, encoder, tokens, total = out.splitlines()
    assert header.split() == ["model", "gears", "MiB", "seconds", "cache", "file"]
    assert encoder.split()[:2] + encoder.split()[4:5] == ["encoder", "4", "found"]
    assert tokens.split()[:2] + tokens.split()[4:5] == ["tokens", "4", "added"]
    assert tokens.split()[-1].endswith("model.om")
    assert total.startswith("cache: 2 compiled models, 0.0 MiB in ")
    assert "compiling" in err


def test_precision_and_options(folder, compiled, runs):
    """From the configuration, and from the command line, which comes before."""
    text = {"precision": "fp16", "ge.aicoreNum": "12|10", "atc.oo_level": "O1"}
    blocks = parameters(**{key.replace(".", "__"): value for key, value in text.items()})
    (folder / "config.pbtxt").write_text(f'backend: "ge"\n{CONFIG}{blocks}')
    compiled(folder)
    compiled(folder, "--option=ge.aicoreNum=6|5", "--option", "op_debug_level=0")
    lines = runs()
    assert {"--precision_mode_v2=mixed_float16", "--aicore_num=12|10"} <= set(lines[0])
    assert {"--aicore_num=6|5", "--op_debug_level=0", "--oo_level=O1"} <= set(lines[1])


def test_into_a_file(folder, compiled, tmp_path, monkeypatch):
    """A copy, also where nothing is cached; what was there is replaced."""
    target = tmp_path / "model.om"
    target.write_text("before")
    (made,) = compiled(folder, "--into", target)
    assert target.read_bytes() == Path(made["file"]).read_bytes()
    monkeypatch.setenv("GE_CACHE_DIR", "off")
    target.unlink()
    compiled(folder, "--into", target)
    assert target.is_file()
    assert {path.name for path in tmp_path.glob("*model.om*")} == {"model.om", "model.om.json"}


def test_the_names_of_axes_go_with_it(folder, compiled, tmp_path):
    """They are what an .om does not keep; a dimension that has none there gets none here."""
    compiled(folder, "--into", tmp_path / "model.om")
    assert read_axes(tmp_path / "model.om") == {
        "ids": ("batch", "sequence"),
        "attention_mask": ("batch", "sequence"),
        "y": ("batch", ""),
    }
    config = CONFIG + parameters(axes__x="batch,sequence", axes__y="batch,sequence")
    write_model(tmp_path / "models", "bare", config, plus_one(TensorProto.FLOAT, ("n", None)))
    compiled(tmp_path / "models" / "bare", "--into", tmp_path / "bare.om")
    assert read_axes(tmp_path / "bare.om") == {}


@pytest.mark.parametrize("into", [False, True])
def test_a_server_finds_what_was_compiled(folder, compiled, runs, monkeypatch, into):
    """In the cache, or as the file that the model's folder has; it runs and compiles no more."""
    (folder / "1" / "model.onnx").write_bytes(onnx_of(Affine(a=3.0), ("batch", "sequence")))
    compiled(folder, *(("--into", folder / "1" / "model.om") if into else ()))
    monkeypatch.setitem(sys.modules, "acl", Simulator())
    with open_offline(folder, device="npu:0") as model:
        assert model.grid.entries == ((1, 8), (1, 16), (4, 8), (4, 16))
        assert model.layout.axes == ("sequence",)
        assert measured_anew(model).keys() == set(model.grid.entries)
    assert len(runs()) == 1


def test_a_server_finds_what_was_compiled_with_options(folder, compiled, runs, monkeypatch):
    """Those of the configuration, with the file of preprocessing that one names."""
    options = {"precision": "fp16", "atc.insert_op_conf": "aipp.cfg", "atc.oo_level": "O1"}
    given = options | {"npu.priority": "1", "ge.aicoreNum": "12|10", "buckets.rows": "1,4"}
    blocks = parameters(**{key.replace(".", "__"): value for key, value in given.items()})
    (folder / "config.pbtxt").write_text(f'backend: "ge"\nmax_batch_size: 4\n{blocks}')
    (folder / "1" / "aipp.cfg").write_text("aipp_op { aipp_mode: static input_format: RGB888_U8 }")
    (folder / "1" / "model.onnx").write_bytes(onnx_of(ChannelMeans(), ("batch", 3, 8, 6)))
    compiled(folder)
    monkeypatch.setitem(sys.modules, "acl", Simulator())
    with open_offline(folder, device="npu:0") as model:
        assert measured_anew(model).keys() == {(1,), (4,)}
    assert len(runs()) == 1


def test_the_chip_of_this_machine(folder, ge_backend, runs, monkeypatch):
    """Nobody need know its name."""
    monkeypatch.setitem(sys.modules, "acl", Simulator(soc="Ascend310P3"))
    assert ge_backend("compile", folder)[0] == 0
    assert "--soc_version=Ascend310P3" in runs()[0]


def test_without_an_npu_the_chip_must_be_given(folder, ge_backend):
    """The message says how to find its name."""
    code, out, err = ge_backend("compile", folder)
    assert (code, out) == (2, "")
    assert "give --soc-version: on the machine that will serve, the Name of 'npu-smi info'" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--option", "oo_level"], "--option is 'oo_level'; expected a name, =, and a value"),
        (["--option", "ge.odd=1"], "'ge.odd' means nothing to atc"),
        (["--into", "/nowhere/model.om"], "--into /nowhere/model.om: "),
    ],
)
def test_what_cannot_be_done_is_one_line(folder, ge_backend, arguments, said):
    """And exit code 2."""
    code, out, err = ge_backend("compile", "--soc-version=Ascend910B3", folder, *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("ge-backend: ")
    assert said in err.splitlines()[-1]


def test_what_contradicts_itself(folder, ge_backend, monkeypatch):
    """Several results in one file; a result that nobody keeps."""
    chip = "--soc-version=Ascend910B3"
    _, _, err = ge_backend("compile", chip, folder, folder, "--into", "x.om")
    assert "--into takes the result of one model" in err
    monkeypatch.setenv("GE_CACHE_DIR", "off")
    assert "GE_CACHE_DIR is off" in ge_backend("compile", chip, folder)[2]


def test_a_failure_has_the_compilers_words(folder, ge_backend, monkeypatch):
    """What it says, and how to repeat it."""
    monkeypatch.setenv("FAKE_ATC", "fails")
    code, _, err = ge_backend("compile", "--soc-version=Ascend910B3", folder)
    assert code == 2
    assert "EZ3003" in err
    assert "to repeat it: " in err
