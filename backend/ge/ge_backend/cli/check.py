"""`ge-backend check`: what works on this machine, and why the rest does not."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import ge_backend
from ge_backend.device.base import DEVICE_KINDS
from ge_backend.errors import GeError, ServerError
from ge_backend.tritonserver import ServerOptions, TritonServer, find_server, running_python

__all__ = ["Finding", "can_serve", "find_all", "register"]

# Module -> the extra that installs it. They are imported in processes of their own: an engine may
# take seconds, print, or crash where its driver is missing.
CLIENTS = {"tritonclient.http": "server", "tritonclient.grpc": "server"}
ENGINES = {
    "onnxruntime": "onnx",
    "torch": "torch",
    "torch_npu": "npu",
    "tokenizers": "text",
    "PIL": "image",
}
PROBE_TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
# `null` computes nothing, so that it opens proves nothing.
NOT_CHECKED = ("null",)
# A plain model of the host's Python backend: an answer from it proves server, stub, interpreter and
# numpy at once. A stub reads wrong values from a numpy that is newer than it knows.
PROBE_CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
"""
PROBE_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * a)]) for a in arrays]
"""
PROBE_REQUEST = {"inputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}]}
PROBE_ANSWER = [2, 4, 6]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        kind: `server`, `client`, `device` or `engine`.
        detail: a version or size if it works, else the reason why not.
    """

    kind: str
    name: str
    ok: bool
    detail: str


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "check",
        help="print what works on this machine and why the rest does not",
        description="Starts a server, opens every device and imports every engine. The exit code "
        "is 0 if this machine can serve: a server, a device and an engine work.",
    )
    parser.add_argument("--tritonserver", type=Path, metavar="PATH", help="its binary or folder")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser.set_defaults(func=check)


def check(arguments: argparse.Namespace) -> int:
    """Print every finding; return 0 if something can serve."""
    findings: list[Finding] = []
    for finding in find_all(arguments.tritonserver):
        findings.append(finding)
        if not arguments.json:
            print(_line(finding), flush=True)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    return 0 if can_serve(findings) else 1


def find_all(tritonserver: Path | None) -> Iterator[Finding]:
    """Yield the findings one by one, as each takes its time."""
    yield Finding(kind="python", name=running_python(), ok=True, detail=sys.executable)
    yield _find_server(tritonserver)
    for module, extra in CLIENTS.items():
        yield _find_module("client", module, extra)
    for kind in DEVICE_KINDS:
        if kind not in NOT_CHECKED:
            yield _find_device(kind)
    for module, extra in ENGINES.items():
        yield _find_module("engine", module, extra)


def can_serve(findings: Sequence[Finding]) -> bool:
    """Return whether a server, a device and an engine are among what works."""
    works = {finding.kind for finding in findings if finding.ok}
    return {"server", "device", "engine"} <= works


def _line(finding: Finding) -> str:
    verdict = "PASS" if finding.ok else "FAIL"
    return f"{verdict}  {finding.kind:7} {finding.name:18} {finding.detail}"


def _find_server(tritonserver: Path | None) -> Finding:
    finding = Finding(kind="server", name="tritonserver", ok=False, detail="")
    try:
        installation = find_server(tritonserver)
        about = f"{installation.binary} {installation.version}".strip()
        stubs = ", ".join(installation.stub_versions)
        with tempfile.TemporaryDirectory(prefix="ge-check-") as folder:
            options = ServerOptions(
                repositories=(_probe_repository(Path(folder)),),
                log_file=Path(folder) / "server.log",
                start_timeout_s=START_TIMEOUT_S,
            )
            with TritonServer(installation, options) as server:
                detail = f"{server.version()} serves Python {running_python()} ({about}; {stubs})"
                _infer(server.http)
    except GeError as error:
        return replace(finding, detail=str(error))
    return replace(finding, ok=True, detail=detail)


def _probe_repository(folder: Path) -> Path:
    version = folder / "models" / "probe" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(PROBE_CONFIG)
    (version / "model.py").write_text(PROBE_MODEL)
    return folder / "models"


def _infer(address: str) -> None:
    """Ask the probe model over HTTP.

    Raises:
        ServerError: it answers with something else than twice what it was sent, or not at all.
    """
    connection = http.client.HTTPConnection(address, timeout=PROBE_TIMEOUT_S)
    with contextlib.closing(connection):
        path, body = "/v2/models/probe/infer", json.dumps(PROBE_REQUEST)
        try:
            connection.request("POST", path, body, headers={"Connection": "close"})
            answer = json.load(connection.getresponse())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerError(f"tritonserver at {address} does not answer: {error}") from error
    values = answer["outputs"][0]["data"] if "outputs" in answer else answer
    if values != PROBE_ANSWER:
        raise ServerError(
            f"a Python model answers {values}, expected {PROBE_ANSWER}; the stub may be too old "
            f"for numpy {importlib.metadata.version('numpy')}: try pip install --no-deps 'numpy<2'"
        )


def _find_module(kind: str, module: str, extra: str) -> Finding:
    top = module.split(".", maxsplit=1)[0]
    # By its attribute first: onnxruntime comes from several distributions (onnxruntime-gpu, …).
    code = (
        f"import {module}, importlib.metadata\n"
        f"print(getattr({top}, '__version__', None) or importlib.metadata.version('{top}'))"
    )
    ok, detail = _ask(code)
    if not ok and "ModuleNotFoundError" in detail:
        detail = f"not installed: pip install 'triton-ge-backend[{extra}]' ({detail})"
    return Finding(kind=kind, name=module, ok=ok, detail=detail)


def _find_device(kind: str) -> Finding:
    code = (
        "from ge_backend.device.base import open_device\n"
        f"device = open_device({kind!r})\n"
        "memory = device.memory()\n"
        "print(f'{device.lanes} runs at once, {memory.free_bytes >> 20} of '\n"
        "      f'{memory.total_bytes >> 20} MiB free')\n"
        "device.close()"
    )
    ok, detail = _ask(code)
    return Finding(kind="device", name=kind, ok=ok, detail=detail)


def _ask(code: str) -> tuple[bool, str]:
    """Run code in the interpreter that executors use; return success and its last line."""
    python = os.environ.get("GE_PYTHON") or sys.executable
    package = str(Path(ge_backend.__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": package, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    try:
        done = subprocess.run(
            [python, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    output = done.stdout if done.returncode == 0 else done.stderr
    last = (output.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
    return done.returncode == 0, last
