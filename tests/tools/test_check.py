import json
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from onnx import TensorProto, helper

from builders.graphs import graph
from ge_backend.errors import ServerError
from ge_tools import check
from ge_tools.check import Finding
from ge_tools.model.needs import Needs
from ge_tools.tritonserver import free_ports

KINDS = ("server", "device", "engine")
# What a host says that finds none, and one that was built without (2.70).
NONE = (
    "instance group m_0 of model m has kind KIND_GPU but no GPUs are available",
    "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs",
)


def finding(kind: str, *, ok: bool, **fields) -> Finding:
    return Finding(kind=kind, name=kind, ok=ok, detail="why", **fields)


@pytest.fixture
def found(monkeypatch):
    """A function that sets what is found, whatever this machine has."""

    def found(*findings: Finding) -> None:
        monkeypatch.setattr(check, "find_all", lambda *_: iter(findings))

    return found


@pytest.fixture
def models(tmp_path):
    """A repository with a model of ours and one of another backend."""
    for name, backend in (("mine", "ge"), ("other", "python")):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(f'backend: "{backend}"')
    (tmp_path / "mine" / "1" / "model.onnx").touch()
    return tmp_path


@pytest.mark.parametrize("missing", ["", "server", "device", "engine"])
def test_a_machine_can_serve_if_a_server_a_device_and_an_engine_work(missing, found, ge_backend):
    """One of each is enough, and each is needed."""
    findings = [finding(kind, ok=kind != missing) for kind in KINDS]
    findings += [finding("client", ok=False)]

    for more in ((), (finding("engine", ok=False),)):
        found(*findings, *more)
        code, out, _ = ge_backend("check")
        assert code == bool(missing)
        said = f"cannot serve models: no {missing} works" if missing else "can serve models"
        assert out.splitlines()[-1] == f"this machine {said}"


def test_the_report_has_a_line_for_each_finding_and_what_is_absent_is_no_failure(found, ge_backend):
    """A reason stands beside each verdict, and what nobody needs says what it would be good for."""
    found(
        *(finding(kind, ok=True) for kind in KINDS),
        finding("client", ok=False),
        Finding(kind="device", name="npu", ok=False, here=False, detail="why", brings="model.om"),
    )

    code, out, _ = ge_backend("check")
    assert code == 0
    assert [line.split() for line in out.splitlines()[:-1]] == [
        *(["PASS", kind, kind, "why"] for kind in KINDS),
        ["FAIL", "client", "client", "why"],
        ["none", "device", "npu", "why;", "for", "model.om"],
    ]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"kind": "device", "name": "npu:0", "needed_by": ("a", "b")}, "npu:0 for a, b"),
        ({"kind": "model", "name": "a"}, "a"),
        ({"kind": "server", "name": "tritonserver"}, "tritonserver"),
    ],
)
def test_a_repository_fails_for_what_it_needs(broken, said, found, ge_backend, models):
    """The last line names it, and which models cannot do without it."""
    found(
        *(finding(kind, ok=True) for kind in KINDS),
        Finding(ok=False, here=False, detail="why", **broken),
    )

    code, out, _ = ge_backend("check", models)
    assert code == 1
    assert out.splitlines()[-1] == f"this machine cannot serve {models}: {said}"


def test_a_repository_is_served_without_what_it_does_not_need(found, ge_backend, models):
    """An engine that is installed and broken is shown, but not this repository's business."""
    found(*(finding(kind, ok=True) for kind in KINDS), finding("engine", ok=False))

    code, out, _ = ge_backend("check", models)
    assert code == 0
    assert out.splitlines()[-1] == (
        f"this machine has what the models in {models} need; their files were not loaded"
    )
    assert any(line.startswith("FAIL  engine") for line in out.splitlines())


def test_what_a_repository_needs_is_looked_at_by_its_own_name(monkeypatch, models):
    """A model on `npu:3` needs that one; each finding says whose it is."""
    monkeypatch.setattr(check, "_find_server", lambda _: finding("server", ok=True))
    monkeypatch.setattr(check, "_ask", lambda _: (True, "fine"))
    needs = Needs(
        devices={"npu:3": ("mine",)},
        engines={"torch": ("mine",)},
        extras={"torch": "generation"},
        others={},
        broken={"bad": "no file"},
    )

    found = {finding.name: finding for finding in check.find_all(None, needs)}

    assert found["npu:3"].needed_by == ("mine",)
    assert "npu" not in found
    assert {"cpu", "cuda"} <= set(found)
    assert found["torch"].needed_by == ("mine",)
    assert found["onnxruntime"].needed_by == ()
    assert (found["bad"].ok, found["bad"].detail) == (False, "no file")


def test_what_a_model_needs_is_installed_by_the_extra_that_brings_all_of_it(monkeypatch):
    """The library alone has one of its own, which would not be enough."""
    monkeypatch.setattr(check, "_find_server", lambda _: finding("server", ok=True))
    monkeypatch.setattr(
        check, "_ask", lambda _: (False, "ModuleNotFoundError: No module named 'torch'")
    )
    needs = Needs(
        devices={},
        engines={"torch": ("mine",)},
        extras={"torch": "generation"},
        others={},
        broken={},
    )

    found = {finding.name: finding for finding in check.find_all(None, needs)}

    assert found["torch"].detail.endswith("pip install 'triton-ge-backend[generation]'")


@pytest.fixture
def server(tmp_path_factory, monkeypatch):
    """A folder that passes for a server, which has the backend `python` alone."""
    folder = tmp_path_factory.mktemp("server")
    for file in ("bin/tritonserver", "backends/python/libtriton_python.so"):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).touch()
    monkeypatch.setattr(check, "_find_server", lambda _: finding("server", ok=True))
    monkeypatch.setattr(check, "_ask", lambda _: (True, "fine"))
    return folder


def test_a_model_of_a_backend_that_the_server_lacks_fails(server, ge_backend, models):
    """A slip in the name, or no name: Triton takes its own backend for the file then."""
    for name, config in (("slip", 'backend: "gee"'), ("none", "max_batch_size: 4")):
        (models / name / "1").mkdir(parents=True)
        (models / name / "1" / "model.onnx").touch()
        (models / name / "config.pbtxt").write_text(config)

    code, out, _ = ge_backend("check", models, "--tritonserver", server)

    assert code == 1
    said = 'and this server has ge, python; write backend: "ge" in its config.pbtxt'
    for name, backend in (("slip", "gee"), ("none", "onnxruntime")):
        assert f"FAIL  model   {name:18} it is run by the backend {backend!r}, {said}" in out
    assert out.splitlines()[-1] == f"this machine cannot serve {models}: none; slip"


@pytest.mark.parametrize("said", ["", *NONE], ids=["some", "none", "built without"])
def test_instances_on_gpus_fail_where_the_server_finds_none(
    server, monkeypatch, ge_backend, models, said
):
    """With them the server does not start, whatever else works; it is asked only if one says so."""
    asked, gpus = [], not said

    def answer(_, *more):
        asked.append(more)
        return replace(finding("server", ok=gpus or not more), detail=said)

    monkeypatch.setattr(check, "_find_server", answer)
    args = ("check", models, "--tritonserver", server)
    assert ge_backend(*args)[0] == 0
    assert asked == [()]
    text = 'backend: "ge" instance_group [ {}, { kind: KIND_GPU gpus: [ 0 ] } ]'
    (models / "mine" / "config.pbtxt").write_text(text)

    code, out, _ = ge_backend(*args)

    assert asked[2:] == [("instance_group { kind: KIND_GPU }",)]
    assert code == (not gpus)
    assert ("FAIL  model   mine               its instance_group says KIND_GPU" in out) == (
        not gpus
    )


def test_deep_loads_the_models_and_prints_what_is_tested_of_them(found, ge_backend, models):
    """A set is told from rows; what cannot be loaded is a failure."""
    pytest.importorskip("onnxruntime")
    found(*(finding(kind, ok=True) for kind in KINDS))
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    tensors = [[(name, TensorProto.FLOAT, ["n", 3])] for name in "xy"]
    (models / "mine" / "1" / "model.onnx").write_bytes(graph(nodes, *tensors))

    code, out, _ = ge_backend("check", models, "--deep")
    assert code == 0
    assert "tested of mine" in out
    assert any(line.split()[:2] == ["axes", "runs"] for line in out.splitlines())
    (rows,) = [line for line in out.splitlines() if line.split()[:2] == ["rows", "three"]]
    assert "does not hold: completed to max_batch_size: 0" in rows
    assert "their files were loaded" in out

    (models / "mine" / "1" / "model.onnx").write_bytes(b"none")
    code, out, _ = ge_backend("check", models, "--deep", "--json")
    assert code == 1
    assert [each["kind"] for each in json.loads(out) if not each["ok"]] == ["model"]

    (models / "mine" / "config.pbtxt").write_text("what is this")
    code, out, _ = ge_backend("check", models, "--deep")
    assert code == 1
    assert out.count("FAIL  model   mine") == 1

    code, _, err = ge_backend("check", "--deep")
    assert code
    assert "name one, too" in err


def test_json_is_one_list(found, ge_backend):
    """Its keys are the fields."""
    found(*(finding(kind, ok=True) for kind in KINDS))

    code, out, _ = ge_backend("check", "--json")
    assert code == 0
    printed = json.loads(out)
    assert printed[0] == {
        "kind": "server",
        "name": "server",
        "ok": True,
        "detail": "why",
        "here": True,
        "brings": "",
        "needed_by": [],
    }
    assert len(printed) == 3


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch):
    """An installed one has its version, asked from the interpreter that executors use."""
    absent = check._find_module("engine", "no_such_engine", "npu")
    present = check._find_module("engine", "numpy", "onnx")

    assert not absent.ok
    assert not absent.here
    assert "pip install 'triton-ge-backend[npu]'" in absent.detail
    assert present.ok
    assert present.here
    assert present.detail[0].isdigit()


def test_an_engine_that_is_installed_and_cannot_be_imported_is_here(monkeypatch, tmp_path):
    """Another module that it misses is its own trouble, and the reason."""
    (tmp_path / "halfway.py").write_text("import what_it_needs")
    monkeypatch.setattr(check.ge_backend, "__file__", str(tmp_path / "x" / "__init__.py"))
    broken = check._find_module("engine", "halfway", "onnx")

    assert (broken.ok, broken.here) == (False, True)
    assert "what_it_needs" in broken.detail


def test_a_device_that_cannot_be_opened_says_why():
    """The reason is the error's own text."""
    absent = check._find_device("abacus")

    assert not absent.ok
    assert not absent.here
    assert absent.detail.startswith("device 'abacus' is unknown")


def test_a_server_that_is_not_there_says_why(tmp_path):
    """It is a finding, not an error."""
    absent = check._find_server(tmp_path / "nowhere")

    assert not absent.ok
    assert "is not a tritonserver" in absent.detail


def test_an_interpreter_that_does_not_start_is_a_finding(monkeypatch):
    """GE_PYTHON may point to nothing."""
    monkeypatch.setenv("GE_PYTHON", "/no/such/python")
    ok, detail = check._ask("print(1)")

    assert not ok
    assert "/no/such/python" in detail


def test_the_answer_is_the_last_line(monkeypatch):
    """Libraries print before it; a process that says nothing is told by its code."""
    monkeypatch.setenv("GE_PYTHON", sys.executable)

    assert check._ask("print('noise'); print('answer')") == (True, "answer")
    assert check._ask("import os; os._exit(9)") == (False, "ended with code 9")


@pytest.fixture
def answering():
    """A function that serves one body to every POST and returns the address."""
    servers = []

    def serve(body: bytes) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_stub_that_answers_right_passes(answering):
    """Twice what was sent."""
    check._infer(answering(b'{"outputs": [{"name": "y", "data": [2, 4, 6]}]}'))


@pytest.mark.parametrize(
    "body", [b'{"outputs": [{"name": "y", "data": [2, 2, 2]}]}', b'{"error": "unhealthy"}']
)
def test_a_stub_that_answers_wrong_fails_with_the_version_of_numpy(answering, body):
    """A stub that is older than numpy 2 reads each element as the first."""
    with pytest.raises(ServerError, match=rf"2, 2, 2|unhealthy.*numpy {np.__version__}"):
        check._infer(answering(body))


def test_a_server_that_does_not_answer_is_told():
    """Nobody listens at this port."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(ServerError, match=f"{address} does not answer"):
        check._infer(address)
