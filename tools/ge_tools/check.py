"""`ge-backend check`: what works on this machine, what is absent, and what a repository lacks."""

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
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import ge_backend
from ge_backend.device.base import DEVICE_KINDS
from ge_backend.errors import ConfigError, DeviceUnavailable, GeError, ServerError
from ge_backend.model.config.engine_table import ENGINES
from ge_backend.model.config.model_folder import BACKEND
from ge_tools.model.needs import Needs, read_needs
from ge_tools.model.tested import tested_models, verdict_lines
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server, running_python

__all__ = ["Finding", "find_all", "register"]

# Module -> the extra that installs it, and what it brings. They are imported in processes of their
# own: an engine may take seconds, print, or crash where its driver is missing.
CLIENTS = {
    "tritonclient.http": ("server", "clients in Python over HTTP"),
    "tritonclient.grpc": ("server", "clients in Python over gRPC, and reading config.pbtxt"),
}
LIBRARIES = {row.libraries[-1]: (row.extra, row.runs) for row in ENGINES if row.runs}
DEVICES = {
    "cuda": "model.onnx, model.pt2 and model.pt on an NVIDIA GPU",
    "npu": "model.om, model.onnx, model.pt2 and model.pt on an Ascend NPU",
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
# The same, and what hosts say where they find none, or were built without.
PROBE_GPU = "instance_group { kind: KIND_GPU }"
NO_GPU = ("no GPUs are available", "server does not support GPUs")
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
        kind: `server`, `client`, `device`, `engine`, `model` or `tested`.
        here: it is on this machine, working or not.
        detail: a version or size if it works, else the reason why not.
        brings: what it is good for.
        needed_by: the models of the repository that cannot do without it.
    """

    kind: str
    name: str
    ok: bool
    detail: str
    here: bool = True
    brings: str = ""
    needed_by: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """`PASS`; `FAIL` if it is here or needed and does not work; `none` if not asked for."""
        if self.ok:
            return "PASS"
        return "FAIL" if self.here or self.needed_by else "none"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "check",
        help="print what works on this machine, what is absent, and what a repository lacks",
        description="Starts a server, opens every device and imports every engine. The exit code "
        "is 0 if this machine has what the models of the repository need; without one, if a "
        "server, a device and an engine work. What is absent and not needed is no failure. Model "
        "files are loaded with --deep only, which also prints what is tested of each model.",
    )
    parser.add_argument(
        "repository",
        type=Path,
        nargs="?",
        metavar="MODEL_REPOSITORY",
        help="the folder of models to be served",
    )
    parser.add_argument("--tritonserver", type=Path, metavar="PATH", help="its binary or folder")
    parser.add_argument(
        "--deep", action="store_true", help="load each model, and print what is tested of it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser.set_defaults(func=check)


def check(arguments: argparse.Namespace) -> int:
    """Print every finding; return 0 if nothing is lacking for the repository, or for any."""
    if arguments.deep and not arguments.repository:
        raise ConfigError("--deep loads the models of a repository; name one, too")
    needs = read_needs(arguments.repository, os.environ) if arguments.repository else None
    findings: list[Finding] = []
    for finding in find_all(arguments.tritonserver, needs):
        findings.append(finding)
        if not arguments.json:
            print(_line(finding), flush=True)
    if arguments.deep:
        known = {finding.name for finding in findings if not finding.ok}
        findings += _deep(arguments.repository, known, silent=arguments.json)
    lacking = _lacking(findings) if needs is None else _failed(findings)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        loaded = "were loaded" if arguments.deep else "were not loaded"
        print(f"this machine {_verdict(arguments.repository, lacking, loaded)}")
    return 1 if lacking else 0


def _deep(repository: Path, known: Container[str], *, silent: bool) -> Iterator[Finding]:
    """Load each model; yield what cannot be loaded, and a finding for each thing that was tested.

    Of those that are `known` to be broken nothing more is told. That an assumption does not hold is
    no failure: the model is served without it.
    """
    for model, verdicts, broken in tested_models(repository):
        if broken and model in known:
            continue
        found = [Finding(kind="model", name=model, ok=False, detail=broken)] if broken else []
        if not silent:
            print("\n".join(map(_line, found) if broken else verdict_lines(model, verdicts)))
        yield from found
        for each in verdicts:
            detail = each.line()
            yield Finding(kind="tested", name=f"{model} {each.assumption}", ok=True, detail=detail)


def _verdict(repository: Path | None, lacking: Sequence[str], loaded: str) -> str:
    """Return what was found, and no more: whether a file can be loaded only --deep tries."""
    if lacking:
        return f"cannot serve {repository or 'models'}: {'; '.join(lacking)}"
    if repository is None:
        return "can serve models"
    return f"has what the models in {repository} need; their files {loaded}"


def find_all(tritonserver: Path | None, needs: Needs | None = None) -> Iterator[Finding]:
    """Yield the findings one by one, as each takes its time.

    Without its place the server is sought where it usually is; without needs any model may come.
    """
    if needs is None:
        needs = Needs(devices={}, engines={}, extras={}, others={}, broken={})
    yield Finding(kind="python", name=running_python(), ok=True, detail=sys.executable)
    yield _find_server(tritonserver)
    for module, (extra, brings) in CLIENTS.items():
        yield replace(_find_module("client", module, extra), brings=brings)
    named = {device.partition(":")[0] for device in needs.devices}
    others = [kind for kind in DEVICE_KINDS if kind not in {*NOT_CHECKED, *named}]
    for device in (*needs.devices, *others):
        brings = DEVICES.get(device.partition(":")[0], "")
        yield replace(_find_device(device), brings=brings, needed_by=needs.devices.get(device, ()))
    for module, (extra, brings) in LIBRARIES.items():
        found = _find_module("engine", module, needs.extras.get(module, extra))
        yield replace(found, brings=brings, needed_by=needs.engines.get(module, ()))
    for model, reason in needs.broken.items():
        yield Finding(kind="model", name=model, ok=False, detail=reason)
    yield from _find_strangers(tritonserver, needs.others)
    said = _find_server(tritonserver, PROBE_GPU).detail if needs.gpu else ""
    message = next((text for text in NO_GPU if text in said), None)
    if message is not None:
        reason = (
            f"its instance_group says KIND_GPU, and this server, which then does not start, says "
            f"{message!r}; write KIND_CPU: the parameter 'device' says where a model runs"
        )
        for model in needs.gpu:
            yield Finding(kind="model", name=model, ok=False, detail=reason)


def _lacking(findings: Sequence[Finding]) -> list[str]:
    """Return which kinds of what any server needs have none that works."""
    works = {finding.kind for finding in findings if finding.ok}
    return [f"no {kind} works" for kind in ("server", "device", "engine") if kind not in works]


def _failed(findings: Sequence[Finding]) -> list[str]:
    """Return what the repository cannot do without and does not work."""
    return [
        finding.name + (f" for {', '.join(finding.needed_by)}" if finding.needed_by else "")
        for finding in findings
        if not finding.ok and (finding.needed_by or finding.kind in {"server", "model"})
    ]


def _line(finding: Finding) -> str:
    purpose = f"; for {finding.brings}" if finding.verdict == "none" and finding.brings else ""
    return f"{finding.verdict}  {finding.kind:7} {finding.name:18} {finding.detail}{purpose}"


def _find_server(tritonserver: Path | None, more: str = "") -> Finding:
    finding = Finding(kind="server", name="tritonserver", ok=False, detail="")
    try:
        installation = find_server(tritonserver)
        about = f"{installation.binary} {installation.version}".strip()
        stubs = ", ".join(installation.stub_versions)
        with tempfile.TemporaryDirectory(prefix="ge-check-") as folder:
            options = ServerOptions(
                repositories=(_probe_repository(Path(folder), more),),
                log_file=Path(folder) / "server.log",
                start_timeout_s=START_TIMEOUT_S,
            )
            with TritonServer(installation, options) as server:
                version = server.options.api.version()
                detail = f"{version} serves Python {running_python()} ({about}; {stubs})"
                if server.abilities.note:
                    detail = f"{detail}; {server.abilities.note}"
                _infer(server.http)
    except GeError as error:
        return replace(finding, detail=str(error))
    return replace(finding, ok=True, detail=detail)


def _find_strangers(tritonserver: Path | None, others: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the models of a backend that the server lacks; none where there is no server."""
    try:
        folders = find_server(tritonserver).backends.iterdir()
    except ServerError:
        return
    there = {BACKEND, *(folder.name for folder in folders)}
    for model, backend in others.items():
        if backend not in there:
            reason = (
                f"it is run by the backend {backend!r}, and this server has "
                f'{", ".join(sorted(there))}; write backend: "{BACKEND}" in its config.pbtxt'
            )
            yield Finding(kind="model", name=model, ok=False, detail=reason)


def _probe_repository(folder: Path, more: str) -> Path:
    version = folder / "models" / "probe" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(PROBE_CONFIG + more)
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
    here = f"ModuleNotFoundError: No module named '{top}'" not in detail
    if not here:
        detail = f"not installed: pip install 'triton-ge-backend[{extra}]'"
    return Finding(kind=kind, name=module, ok=ok, here=here, detail=detail)


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
    absent = f"{DeviceUnavailable.__module__}.{DeviceUnavailable.__name__}: "
    return Finding(
        kind="device",
        name=kind,
        ok=ok,
        here=ok or not detail.startswith(absent),
        detail=detail.removeprefix(absent),
    )


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
