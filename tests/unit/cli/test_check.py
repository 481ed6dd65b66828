import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from ge_backend.cli import check
from ge_backend.cli.check import Finding, can_serve
from ge_backend.cli.main import main
from ge_backend.errors import ServerError
from ge_backend.tritonserver import free_ports


def finding(kind: str, *, ok: bool) -> Finding:
    return Finding(kind=kind, name=kind, ok=ok, detail="why")


@pytest.mark.parametrize("missing", ["", "server", "device", "engine"])
def test_a_machine_can_serve_if_a_server_a_device_and_an_engine_work(missing):
    """One of each is enough, and each is needed."""
    kinds = ("server", "device", "engine")
    findings = [finding(kind, ok=kind != missing) for kind in kinds]
    findings += [finding("client", ok=False)]

    assert can_serve(findings) is (missing == "")
    assert can_serve([*findings, finding("engine", ok=False)]) is (missing == "")


def test_the_report_has_a_line_for_each_finding_and_the_exit_code_says_if_one_can_serve(
    monkeypatch, capsys
):
    """A reason stands beside each FAIL."""
    found = [finding("server", ok=True), finding("engine", ok=False)]
    monkeypatch.setattr(check, "find_all", lambda _: iter(found))

    assert main(["check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["PASS", "server", "server", "why"],
        ["FAIL", "engine", "engine", "why"],
    ]


def test_json_is_one_list(monkeypatch, capsys):
    """Its keys are the fields."""
    kinds = ("server", "device", "engine")
    monkeypatch.setattr(check, "find_all", lambda _: (finding(kind, ok=True) for kind in kinds))

    assert main(["check", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed[0] == {"kind": "server", "name": "server", "ok": True, "detail": "why"}
    assert len(printed) == 3


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch):
    """An installed one has its version, asked from the interpreter that executors use."""
    absent = check._find_module("engine", "no_such_engine", "npu")
    present = check._find_module("engine", "numpy", "onnx")

    assert not absent.ok
    assert "pip install 'triton-ge-backend[npu]'" in absent.detail
    assert present.ok
    assert present.detail[0].isdigit()


def test_a_device_that_cannot_be_opened_says_why():
    """The reason is the error's own text."""
    absent = check._find_device("abacus")

    assert not absent.ok
    assert "device 'abacus' is unknown" in absent.detail


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
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
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
