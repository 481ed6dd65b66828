"""Compiling with a fake `atc` that checks its command line: cached, told of, repeatable, ended."""

import contextlib
import logging
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import ge_backend  # noqa: E402
from acl_simulator import Affine, Echo, MatMul, Simulator, Sums, TokenRows  # noqa: E402
from builders.cann import fake_cann, runs_of_atc  # noqa: E402
from builders.graphs import masked_mean, plus_one, scaled  # noqa: E402
from builders.simulated_onnx import onnx_of  # noqa: E402
from ge_backend.engines.atc import compile as atc  # noqa: E402
from ge_backend.engines.atc.cache import CompileCache  # noqa: E402
from ge_backend.engines.atc.compile import compile_onnx  # noqa: E402
from ge_backend.engines.atc.options import CompileRequest  # noqa: E402
from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError  # noqa: E402
from ge_backend.tensors import TensorSpec, data_type  # noqa: E402

INPUTS = tuple(
    TensorSpec(name=name, dtype=data_type("INT64"), dims=(-1, -1), axes=("batch", "sequence"))
    for name in ("ids", "attention_mask")
)


def buckets(*shapes):
    return tuple({"ids": shape, "attention_mask": shape} for shape in shapes)


@pytest.fixture
def cann(tmp_path, monkeypatch):
    """An installation that is found; its runs are noted."""
    root = fake_cann(tmp_path / "cann")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(root))
    monkeypatch.setenv("FAKE_ATC_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("FAKE_ATC", raising=False)
    return root


@pytest.fixture
def runs(tmp_path):
    """Return a function that gives the runs of the compiler so far."""
    return lambda: runs_of_atc(tmp_path / "runs")


@pytest.fixture
def request_(tmp_path, cann):
    """What a test compiles if it does not say otherwise."""
    (tmp_path / "model").mkdir()
    model = tmp_path / "model" / "model.onnx"
    model.write_bytes(masked_mean())
    return CompileRequest(
        model=model, inputs=INPUTS, shapes=buckets((1, 8), (4, 8), (4, 16)), soc="Ascend910B3"
    )


@pytest.fixture
def cache(tmp_path):
    return CompileCache(tmp_path / "cache")


def test_a_model_is_compiled_once(request_, cache, runs):
    """The compiler accepts the command line; the second time it is not asked."""
    path = compile_onnx(request_, cache).path
    assert path.suffix == ".om"
    assert compile_onnx(request_, cache).path == path
    shuffled = replace(request_, shapes=request_.shapes[::-1])
    assert compile_onnx(shuffled, cache).path == path
    (run,) = runs()
    assert "--dynamic_dims=1,8,1,8;4,8,4,8;4,16,4,16" in run["arguments"]
    assert "--precision_mode_v2=origin" in run["arguments"]
    assert run["set_env"] == "arguments: "


@pytest.mark.parametrize("others", [["/cann/python", "/more"], []])
def test_the_compilers_python_does_not_get_our_environments_packages(
    request_, cache, runs, monkeypatch, others
):
    """Ours lie beside the package, which an executor has on its path: atc's are for another one."""
    ours = str(Path(ge_backend.__file__).resolve().parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([ours, *others]))
    compile_onnx(request_, cache)
    assert runs()[0]["python_path"] == (os.pathsep.join(others) or None)


@pytest.mark.parametrize("others", [["/usr/local/Ascend/driver/lib64"], []])
def test_the_compiler_finds_the_library_of_python(
    request_, cache, runs, monkeypatch, tmp_path, others
):
    """It is loaded by its name: executors have CANN's folders alone, and CANN's image has it elsewhere."""
    (tmp_path / "libpython3.99.so.1.0").touch()
    found = {"LIBDIR": str(tmp_path), "INSTSONAME": "libpython3.99.so.1.0"}
    monkeypatch.setattr(atc.sysconfig, "get_config_var", found.get)
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(others))
    compile_onnx(request_, cache)
    assert runs()[0]["library_path"].split(os.pathsep) == [*others, str(tmp_path)]


def test_a_python_without_a_library_changes_no_search_path(
    request_, cache, runs, monkeypatch, tmp_path
):
    """It is built into the interpreter: what is there cannot be loaded."""
    (tmp_path / "libpython3.99.a").touch()
    found = {"LIBDIR": str(tmp_path), "INSTSONAME": "libpython3.99.a"}
    monkeypatch.setattr(atc.sysconfig, "get_config_var", found.get)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    compile_onnx(request_, cache)
    assert runs()[0]["library_path"] is None


@pytest.mark.parametrize(
    ("shapes", "batches", "dims"),
    [
        ([(2, 3)], [], []),
        ([(1, 3), (2, 3)], [1, 2], []),
        ([(2, 3), (2, 5)], [], [[2, 3], [2, 5]]),
        ([(1, 3), (2, 5)], [], [[1, 3], [2, 5]]),
    ],
)
def test_the_simulator_loads_what_the_fake_compiles(request_, cache, shapes, batches, dims):
    """A model made from a graph of the simulator becomes that graph, with these gears."""
    request_.model.write_bytes(onnx_of(Affine(a=3.0)))
    x = TensorSpec(name="x", dtype=data_type("FP32"), dims=(-1, -1), axes=("", ""))
    asked = replace(request_, inputs=(x,), shapes=tuple({"x": shape} for shape in shapes))
    acl = Simulator(soc=asked.soc)
    assert acl.init() == acl.rt.set_device(0) == 0
    model, code = acl.mdl.load_from_file(str(compile_onnx(asked, cache).path))
    assert code == 0
    description = acl.mdl.create_desc()
    assert acl.mdl.get_desc(description, model) == 0
    assert acl.mdl.get_dynamic_batch(description)[0]["batch"] == batches
    count, _ = acl.mdl.get_input_dynamic_gear_count(description, -1)
    gears = acl.mdl.get_input_dynamic_dims(description, -1, count)[0] if count else []
    assert [gear["dims"] for gear in gears] == dims


@pytest.mark.parametrize("graph", [Affine(), Echo(), MatMul(rows=3), Sums(), TokenRows()])
def test_the_cpu_computes_what_the_simulator_does(tmp_path, graph):
    """So that one file can be compared on both."""
    onnxruntime = pytest.importorskip("onnxruntime")
    (tmp_path / "m.onnx").write_bytes(onnx_of(graph))
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    (spec,) = session.get_inputs()
    dtype = np.int64 if "int64" in spec.type else np.float32
    x = np.arange(6).reshape(2, 3).astype(dtype)
    (y,) = session.run(None, {spec.name: x})
    np.testing.assert_allclose(y, graph.expected(**{spec.name: x})["y"], rtol=1e-6)


@pytest.mark.parametrize(
    "shapes",
    [
        buckets((2, 8)),
        buckets((1, 8), (2, 8)),
        buckets((1, 8), (1, 16)),
        buckets(*((1, size) for size in range(1, 101))),
    ],
    ids=["fixed", "batch", "dims", "most"],
)
def test_the_compiler_takes_every_kind_of_gears(request_, cache, shapes):
    """The fake knows the rules of the real one."""
    assert compile_onnx(replace(request_, shapes=shapes), cache).fresh


def test_what_the_result_depends_on(request_, cache, cann, tmp_path, runs):
    """Buckets, chip, precision, options, the model's content and CANN's version; not its place."""
    compile_onnx(request_, cache)
    others = [
        replace(request_, shapes=buckets((1, 8))),
        replace(request_, soc="Ascend310P3"),
        replace(request_, precision="bf16"),
        replace(request_, options=(("ge.aicoreNum", "12|10"),)),
    ]
    assert all(compile_onnx(other, cache).fresh for other in others)
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(request_.model.read_bytes())
    assert not compile_onnx(replace(request_, model=copy), cache).fresh
    copy.write_bytes(plus_one(onnx.TensorProto.INT64, ("batch", "length")))
    plain = {"inputs": (replace(INPUTS[0], name="x"),), "shapes": ({"x": (1, 8)},)}
    assert compile_onnx(replace(request_, model=copy, **plain), cache).fresh
    for info in (cann / "x86_64-linux").iterdir():
        info.write_text(info.read_text().replace("8.5.0", "9.0.0"))
    assert compile_onnx(request_, cache).fresh
    assert len(runs()) == 7


def test_an_inference_card_compiles_by_default(request_, cache, caplog):
    """In fp16, which is said aloud: its matrix unit has no FP32."""
    with caplog.at_level("WARNING"):
        assert compile_onnx(replace(request_, soc="Ascend310P3"), cache).fresh
    assert "Ascend310P3 has no FP32 matrix unit" in caplog.text


def test_the_compiler_takes_a_scalar_input(request_, cache):
    """Beside a batch that varies."""
    request_.model.write_bytes(scaled())
    inputs = (
        TensorSpec(name="x", dtype=data_type("FP32"), dims=(-1, 3), axes=("batch", "")),
        TensorSpec(name="scale", dtype=data_type("FP32"), dims=(), axes=()),
    )
    shapes = tuple({"x": (rows, 3), "scale": ()} for rows in (1, 4))
    assert compile_onnx(replace(request_, inputs=inputs, shapes=shapes), cache).fresh


def test_nothing_is_in_flight_while_the_compiler_is_started(request_, cache):
    """CANN forbids a fork while copies run: whoever compiles says how to wait for that."""
    events = []

    @contextlib.contextmanager
    def quiet():
        events.append("quiet")
        yield
        events.append("on again")

    def popen(*arguments, **given):
        events.append("started")
        return started(*arguments, **given)

    started = subprocess.Popen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atc.subprocess, "Popen", popen)
        compile_onnx(request_, cache, quiet)
    assert events == ["quiet", "started", "on again"]


def test_external_weights_count_as_the_model(request_, cache):
    """A changed weight file is another model."""
    model = onnx.load_model_from_string(masked_mean())
    onnx.save_model(
        model, request_.model, save_as_external_data=True, location="weights", size_threshold=0
    )
    assert compile_onnx(request_, cache).fresh
    assert not compile_onnx(request_, cache).fresh
    weights = request_.model.parent / "weights"
    weights.write_bytes(weights.read_bytes()[::-1])
    assert compile_onnx(request_, cache).fresh


def test_weights_beside_a_link_are_compiled(request_, cache, monkeypatch):
    """The compiler follows the link first, and would take what lies beside its target."""
    store, folder = request_.model.parent.parent / "store", request_.model.parent
    store.mkdir()
    model = onnx.load_model_from_string(masked_mean())
    onnx.save_model(
        model, request_.model, save_as_external_data=True, location="weights", size_threshold=0
    )
    request_.model.rename(store / "model.onnx")
    request_.model.symlink_to(store / "model.onnx")
    (store / "weights").write_bytes((folder / "weights").read_bytes()[::-1])  # another release's
    started, found = subprocess.Popen, []

    def popen(command, **given):
        file = re.search(r"--model=(\S+)", " ".join(command)).group(1)
        found.append((Path(file).resolve().parent / "weights").read_bytes())
        return started(command, **given)

    monkeypatch.setattr(atc.subprocess, "Popen", popen)
    assert compile_onnx(request_, cache).fresh
    assert found == [(folder / "weights").read_bytes()]


def test_files_that_options_name(request_, cache, runs):
    """They lie beside the model, and their content counts."""
    file = request_.model.parent / "switches.cfg"
    file.write_text("A:off")
    given = replace(request_, options=(("ge.fusionSwitchFile", "switches.cfg"),))
    assert compile_onnx(given, cache).fresh
    assert not compile_onnx(given, cache).fresh
    file.write_text("B:off")
    assert compile_onnx(given, cache).fresh
    assert f"--fusion_switch_file={file}" in runs()[-1]["arguments"]
    long = replace(request_, options=(("atc.optypelist_for_implmode", "Relu," * 1000),))
    assert compile_onnx(long, cache).fresh


def test_a_relative_path(request_, cache, monkeypatch):
    """The compiler runs elsewhere."""
    monkeypatch.chdir(request_.model.parent)
    assert compile_onnx(replace(request_, model=Path("model.onnx")), cache).fresh
    assert not compile_onnx(request_, cache).fresh


def test_a_cache_in_a_folder_that_is_called_like_a_model(request_, tmp_path, monkeypatch):
    """The compiler may say for which host a file is, before the first `.om` of its whole path."""
    monkeypatch.setenv("FAKE_ATC", "hosted")
    compiled = compile_onnx(request_, CompileCache(tmp_path / "my.omega" / "cache"))
    assert compiled.path.is_file()


def test_a_failure_has_the_compilers_words_and_the_command(request_, cache, cann, monkeypatch):
    """One line: its code, cause and solution, not its traceback; and a line to paste in a shell."""
    monkeypatch.setenv("FAKE_ATC", "fails")
    with pytest.raises(ModelError) as caught:
        compile_onnx(request_, cache)
    said = str(caught.value)
    assert said.startswith(f"{request_.model} cannot be compiled for Ascend910B3: atc ended with")
    assert ": EZ3003: [PID: " in said
    assert "No supported Ops kernel and engine are found for [Foo1]." in said
    assert "Solution: Try again" in said
    assert "TraceBack" not in said
    assert "\n" not in said
    monkeypatch.delenv("FAKE_ATC")
    command = said.partition("to repeat it: ")[2]
    assert command.startswith(f". {cann}/set_env.sh && ")
    done = subprocess.run(["bash", "-c", command], cwd=cann, capture_output=True, check=False)
    assert done.returncode == 0
    assert (cann / "model.om").is_file()
    assert compile_onnx(request_, cache).fresh


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("crashes", "atc ended with status 139: .*Segmentation fault"),
        ("killed", "atc was killed, most likely because the machine's memory ran out"),
        ("nothing", "atc wrote no .om file, or several: ATC start working"),
    ],
)
def test_other_ways_to_fail(request_, cache, monkeypatch, fault, said):
    """Half a file is not used; the next start tries again."""
    monkeypatch.setenv("FAKE_ATC", fault)
    with pytest.raises(ModelError, match=said):
        compile_onnx(request_, cache)
    assert cache.entries() == []
    monkeypatch.delenv("FAKE_ATC")
    assert compile_onnx(request_, cache).fresh


def test_what_the_fake_refuses_reaches_the_caller(request_, cache):
    """A model whose inputs are called otherwise: the compiler finds it out."""
    request_.model.write_bytes(plus_one(onnx.TensorProto.INT64))
    with pytest.raises(
        ModelError, match=r"E10016.*attention_mask specified in --input_shape is not found"
    ):
        compile_onnx(request_, cache)


def test_refused_before_the_compiler_is_asked(request_, cache, runs):
    """Buckets and options that it could not take."""
    with pytest.raises(ConfigError, match="max_graphs"):
        compile_onnx(replace(request_, shapes=buckets(*((1, s) for s in range(1, 102)))), cache)
    with pytest.raises(ConfigError, match="means nothing to atc"):
        compile_onnx(replace(request_, options=(("ge.x", "1"),)), cache)
    with pytest.raises(ModelError, match="No such file"):
        compile_onnx(replace(request_, model=request_.model.with_name("gone.onnx")), cache)
    assert runs() == []


def test_without_a_compiler(request_, cache, monkeypatch, tmp_path):
    """The message says where it was looked for."""
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(DeviceUnavailable, match=r"atc, which is neither on PATH nor in .*nowhere"):
        compile_onnx(request_, cache)


def test_a_machine_without_bash(request_, cache, monkeypatch):
    """The compiler is a script of its own, so this is rare; it has a message all the same."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DeviceUnavailable, match=r"started by bash, which failed: .*bash"):
        compile_onnx(request_, cache)


def test_progress_is_logged(request_, cache, monkeypatch, caplog, tmp_path):
    """A line every so often while it compiles, and one at the end."""
    monkeypatch.setenv("FAKE_ATC", "waits")
    monkeypatch.setenv("FAKE_ATC_UNTIL", str(tmp_path / "told"))
    monkeypatch.setattr(atc, "PROGRESS_S", 0.01)
    lines = []

    class Listener(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
            if len(lines) == 3:
                (tmp_path / "told").touch()

    listener = Listener()
    atc.log.addHandler(listener)
    caplog.set_level(logging.INFO, atc.log.name)
    try:
        path = compile_onnx(request_, cache).path
        compile_onnx(request_, cache)
    finally:
        atc.log.removeHandler(listener)
    assert lines[0] == f"compiling {request_.model} for Ascend910B3: 3 gears"
    assert re.match(rf"compiling {re.escape(str(request_.model))}: \d+ s", lines[1])
    assert lines[-2].startswith(f"compiled {request_.model} for Ascend910B3: {path}, ")
    assert lines[-1].startswith(f"compiled before: {request_.model}")


def test_the_compiler_ends_with_the_process_that_waits_for_it(request_, cache, tmp_path):
    """Killed, too: else it would go on for minutes, for nobody."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "cann" / "bin" / "atc").write_text(
        f"#!/bin/bash\nsleep 1000 >{fifo} & echo up >{fifo}; sleep 1000 >{fifo}\n"
    )
    script = (
        "import sys, pickle\n"
        "from ge_backend.engines.atc.compile import compile_onnx\n"
        "compile_onnx(*pickle.load(sys.stdin.buffer))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        pickle.dump((request_, cache), process.stdin)
        process.stdin.close()
        with fifo.open() as reading:
            assert reading.readline() == "up\n"
            process.kill()
            assert reading.read() == ""
    assert cache.entries() == []
