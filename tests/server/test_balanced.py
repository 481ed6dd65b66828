"""Two servers behind a balancer: one is taken out and stopped under load, and no request notices."""

import json
import os
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from prometheus_client.parser import text_string_to_metric_families

from builders.graphs import parameters, write_model
from builders.null_models import comes_true
from builders.servers import server_options
from ge_backend.errors import ServerError
from ge_tools.tritonserver import TritonServer, free_ports

ROOT = Path(__file__).resolve().parents[2]
CLIENTS, LONG_S = 8, 60
CONFIG = """
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
dynamic_batching { }
"""
TENSOR = {"dtype": "FP32", "dims": ["batch", 1]}
ECHO = {
    "inputs": [{"name": "x", **TENSOR}],
    "outputs": [{"name": "y", **TENSOR, "compute": "echo", "of": "x"}],
    "cost_ms": {"*": 10.0},
}


@pytest.fixture(scope="module")
def pair(installation, tmp_path_factory):
    """Two servers of a model that takes 10 ms to say what it was told."""
    repository = tmp_path_factory.mktemp("models")
    config = CONFIG + parameters(device="null", warmup="off")
    write_model(repository, "echo", config, json.dumps(ECHO).encode(), "model.null")
    options = [server_options(repository, exit_timeout_s=20) for _ in range(2)]
    servers = [TritonServer(installation, chosen) for chosen in options]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def both(pair):
    """The same, both of them running."""
    for server in pair:
        try:
            _ = server.directory
        except ServerError:  # the test before has stopped it
            server.start()
    return pair


class Load:
    """Clients that ask without a pause until they are told to stop; each value is asked once."""

    def __init__(self, client):
        self._client, self._going, self._lock = client, threading.Event(), threading.Lock()
        self._asked = 0
        self.answered = Counter()

    def __enter__(self):
        self._threads = ThreadPoolExecutor(CLIENTS)
        self._loops = [self._threads.submit(self._ask) for _ in range(CLIENTS)]
        return self

    def __exit__(self, *_):
        self._going.set()
        self._threads.shutdown()

    def end(self):
        """Stop and return how many were asked; the first error of any is raised."""
        self._going.set()
        for loop in self._loops:
            loop.result(timeout=LONG_S)
        return self._asked

    def _ask(self):
        while not self._going.is_set():
            with self._lock:
                self._asked += 1
                value = float(self._asked)
            given = grpcclient.InferInput("x", [1, 1], "FP32")
            given.set_data_from_numpy(np.array([[value]], np.float32))
            answer = self._client.infer("echo", [given], client_timeout=LONG_S)
            with self._lock:
                self.answered[float(answer.as_numpy("y").item())] += 1


def served(server):
    """Return how many requests a server has answered, and how many of them with an error."""
    page = urllib.request.urlopen(server.metrics, timeout=10).read().decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    names = ("nv_inference_request_success", "nv_inference_request_failure")
    return [int(sum(sample.value for sample in families[name].samples)) for name in names]


def test_a_client_of_both_loses_nothing_when_one_is_stopped(both, monkeypatch):
    """With gRPC's round_robin: SIGTERM under load; every value comes back, once, with no error."""
    monkeypatch.syspath_prepend(ROOT / "client_examples")
    import round_robin

    first, second = both
    with round_robin.connect(f"{first.grpc},{second.grpc}") as client, Load(client) as load:
        assert comes_true(lambda: min(served(first)[0], served(second)[0]) > 20)
        first.stop()
        after = served(second)[0]
        went_on = comes_true(lambda: served(second)[0] > after + 50, seconds=60)
        asked = load.end()
    assert went_on
    assert load.answered == Counter({float(value): 1 for value in range(1, asked + 1)})


@pytest.fixture
def proxy(both, tmp_path):
    """HAProxy before both, as deploy/haproxy.cfg says; its address and its admin socket."""
    binary = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if binary is None:
        pytest.skip("no haproxy; apt-get install haproxy")
    (port,) = free_ports(1)
    admin = tmp_path / "admin.sock"
    environment = {"GE_PROXY": f"127.0.0.1:{port}", "GE_PROXY_ADMIN": str(admin)}
    for name, server in zip("AB", both, strict=True):
        environment[f"GE_{name}"], http = server.http.split(":")
        environment |= {f"GE_{name}_HTTP": http, f"GE_{name}_GRPC": server.grpc.split(":")[1]}
    command = [binary, "-db", "-f", str(ROOT / "deploy" / "haproxy.cfg")]
    with subprocess.Popen(command, env=os.environ | environment) as process:
        yield f"127.0.0.1:{port}", admin
        process.terminate()


def tell(admin, words):
    """Return what HAProxy answers on its admin socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(admin))
        sock.sendall(f"{words}\n".encode())
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(4096), b"")).decode()


def of_first_server(admin, column):
    """Return a number of HAProxy's statistics: `scur` requests under way, `stot` all so far."""
    rows = [row.split(",") for row in tell(admin, "show stat").lstrip("# ").splitlines() if row]
    named = [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
    (number,) = (int(row[column]) for row in named if row["svname"] == "a")
    return number


def test_a_server_is_drained_and_stopped_behind_haproxy(both, proxy):
    """No error, and both have answered exactly as many as were asked: none was run twice."""
    first, second = both
    address, admin = proxy
    before = np.array([served(server) for server in both])
    assert comes_true(lambda: admin.exists() and "UP" in tell(admin, "show stat"))
    with grpcclient.InferenceServerClient(address) as client, Load(client) as load:
        assert comes_true(lambda: all(served(server)[0] > 20 for server in both))
        tell(admin, "set server servers/a state drain")
        assert comes_true(lambda: not of_first_server(admin, "scur"))
        sent = before[0].sum() + of_first_server(admin, "stot")
        assert comes_true(lambda: sum(served(first)) == sent)  # counted after they are answered
        of_first = served(first)
        first.stop()
        after = served(second)[0]
        went_on = comes_true(lambda: served(second)[0] > after + 50, seconds=60)
        asked = load.end()
    assert went_on
    assert load.answered == Counter({float(value): 1 for value in range(1, asked + 1)})

    def done():
        return (np.array([of_first, served(second)]) - before).sum(axis=0).tolist()

    assert comes_true(lambda: done()[0] >= asked)
    assert done() == [asked, 0]
