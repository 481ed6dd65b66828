"""`ge-backend serve` and `TritonServer` with the real server and a plain Python model.

However it ends, nothing may be left: no process, no folder with sockets, no shared memory.
"""

import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from builders.scheduled import HELD, Scheduled, write_held
from builders.servers import QUICK_END
from fakes.null_device import EXECUTORS
from ge_backend.executor.process.host_processes import stubs_of
from ge_tools import health
from ge_tools.main import main
from ge_tools.serve import MAX_FILES
from ge_tools.tritonserver import ServerDirectory, processes_of, shared_memory_of
from ge_tools.tritonserver.model_reloader import PERIOD_S
from ge_tools.tritonserver.options import KEY_HEADER

CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        time.sleep({load_s})

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * a)]) for a in arrays]
"""
SERVE = [sys.executable, "-m", "ge_tools.main", "serve"]
PORTS = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--exit-timeout=3"]
# Time for a server to end in order on a busy machine, its own connections to it included.
PATIENT = [*PORTS[:3], "--exit-timeout=20"]
LIMIT_S = 60.0


def write_model(repository: Path, *, load_s: float = 0, code: str = MODEL) -> Path:
    """Write the model `double`, which takes `load_s` to load."""
    version = repository / "double" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(code.replace("{load_s}", str(load_s)))
    return repository


@pytest.fixture(scope="session")
def repository(tmp_path_factory) -> Path:
    """A repository with one model that doubles its input."""
    return write_model(tmp_path_factory.mktemp("models"))


@pytest.fixture
def hangs_up():
    """What is started meanwhile ends at a hang-up, also where nohup has started the tests."""
    handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, handler)


class Served:
    """A `ge-backend serve` process, and what its server has on this machine."""

    def __init__(self, *arguments: str, **how: object) -> None:
        further = () if "--" in arguments else ("--",)
        self.process = subprocess.Popen(
            [*SERVE, *arguments, *further, QUICK_END],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            **how,
        )
        self.printed = ""
        self.urls: dict[str, str] = {}
        self.run = Path()

    def ready(self) -> dict[str, str]:
        """Wait until it announces its endpoints and return them by name."""
        self._read_until("  metrics ")
        self.locate()
        found = re.findall(r"^  (http|grpc|metrics) +(\S+)$", self.printed, re.MULTILINE)
        self.urls = dict(found)
        return self.urls

    def loading(self) -> None:
        """Wait until a stub has been started, so that the model is being loaded."""
        self.locate()
        wait_until(lambda: len(processes_of(self.run)) > 1)

    def locate(self) -> None:
        """Find out which private folder the server has; it begins with an empty environment."""
        wait_until(lambda: "GE_RUNTIME_DIR" in self._environment())
        self.run = Path(self._environment()["GE_RUNTIME_DIR"])

    def _environment(self) -> dict[str, str]:
        """Return the server's; before it there is one for a moment that only tells its options."""
        with suppress(psutil.NoSuchProcess):
            if (server := self._server()) is not None:
                return server.environ()
        return {}

    def server_pid(self) -> int:
        return self._server().pid

    def end(self) -> int:
        """Wait for it to end and return its exit code."""
        output, _ = self.process.communicate(timeout=LIMIT_S)
        self.printed += output
        return self.process.returncode

    def assert_no_process_and_no_memory_is_left(self) -> None:
        """An empty lock file may be: the next server removes it with the folder."""
        wait_until(lambda: not processes_of(self.run))
        wait_until(lambda: not shared_memory_of(f"{self.run.parent.name}_"))

    def assert_nothing_left(self) -> None:
        assert self.run != Path()
        assert processes_of(self.run) == []
        assert shared_memory_of(self.run.parent.name) == []
        assert not self.run.parent.exists()

    def _server(self) -> psutil.Process | None:
        children = psutil.Process(self.process.pid).children()
        return next((child for child in children if "tritonserver" in child.name()), None)

    def _read_until(self, text: str) -> None:
        for line in self.process.stdout:
            self.printed += line
            if line.startswith(text):
                return
        pytest.fail(f"it ended before it said {text!r}:\n{self.printed}")


@contextmanager
def serving() -> Iterator[Callable[..., Served]]:
    """A function that starts `ge-backend serve`; whatever a failed test leaves is ended."""
    started: list[Served] = []

    def start(*arguments: object, **how: object) -> Served:
        started.append(Served(*map(str, arguments), **how))
        return started[-1]

    yield start
    for one in started:
        for number in (signal.SIGTERM, signal.SIGINT):  # the second one ends it at once
            one.process.send_signal(number)
        try:
            one.process.communicate(timeout=LIMIT_S)
        finally:
            one.process.kill()


@pytest.fixture
def served(installation):
    """A function that starts `ge-backend serve` for one test."""
    with serving() as start:
        yield start


@pytest.fixture(scope="module")
def explicit(installation, repository) -> Iterator[Served]:
    """One of which tests load the model as they like."""
    further = ["--", "--model-control-mode=explicit", "--load-model=*"]
    with serving() as start:
        serve = start("--model-repository", repository, *PORTS, *further)
        serve.ready()
        yield serve


def wait_until(condition, timeout_s: float = LIMIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def doubled(url: str) -> list[float]:
    """Return what the model at this gRPC address makes of 1, 2, 3."""
    x = np.array([1, 2, 3], np.float32)
    tensor = grpcclient.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    with grpcclient.InferenceServerClient(url) as client:
        return client.infer("double", [tensor]).as_numpy("y").tolist()


def test_the_fixture_serves_a_repository_once(triton_server, repository):
    """Asked again it returns the same server; asked otherwise, another."""
    server = triton_server(repository)

    assert doubled(server.grpc) == [2, 4, 6]
    assert triton_server(repository) is server
    assert re.fullmatch(r"\d+\.\d+\.\d+", server.options.api.version())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_server_in_order(served, repository, number, hangs_up):
    """It served till then; the code is the server's 0, and nothing is left."""
    serve = served("--model-repository", repository, *PATIENT)
    endpoints = serve.ready()
    assert doubled(endpoints["grpc"]) == [2, 4, 6]
    with closing(http.client.HTTPConnection(endpoints["http"].removeprefix("http://"))) as client:
        client.request("GET", "/v2", headers={"Connection": "close"})
        assert client.getresponse().status == 200

    serve.process.send_signal(number)
    assert serve.end() == 0
    assert "Waiting for in-flight requests" in serve.printed
    serve.assert_nothing_left()


def test_sigterm_to_all_processes_at_once_ends_in_order_what_is_under_way(served, tmp_path):
    """As systemd sends it: what runs and what waits is answered, by the executor that has it."""
    models, folder = tmp_path / "models", tmp_path / "held"
    models.mkdir()
    folder.mkdir()
    write_held(models, "slow", folder, "instance_group [ { count: 1 } ]")
    serve = served("--model-repository", models, *PATIENT, env=os.environ | EXECUTORS)
    with closing(Scheduled(SimpleNamespace(**serve.ready()), folder)) as host:
        answers = [host.hold("slow"), host.send("slow", 1), host.send("slow", 2)]
        assert host.comes_to(2, "nv_inference_pending_request_count", model="slow")
        for pid in (*processes_of(serve.run), serve.process.pid):
            os.kill(pid, signal.SIGTERM)
        serve._read_until("Signal (")
        host.let_go()
        assert [answer.get().as_numpy("y")[0, 0] for answer in answers] == [HELD, 1, 2]
    assert serve.end() == 0
    assert "is gone" not in serve.printed
    serve.assert_nothing_left()


def test_what_died_with_a_stub_holds_up_no_stop(served, tmp_path):
    """The host would wait for it to the end of the exit timeout, and end with 1."""
    models, folder = tmp_path / "models", tmp_path / "held"
    models.mkdir()
    folder.mkdir()
    write_held(models, "queued", folder, max_queue_size=8)
    timeout = f"--exit-timeout={LIMIT_S:.0f}"
    serve = served("--model-repository", models, *PORTS[:3], timeout, env=os.environ | EXECUTORS)
    with closing(Scheduled(SimpleNamespace(**serve.ready()), folder)) as host:
        lost = [host.hold("queued"), host.send("queued", 1)]
        assert host.comes_to(1, "ge_backlog_requests", model="queued")
        kill_a_stub(serve)
        wait_until(lambda: host.client.is_model_ready("queued"))
        serve.process.terminate()
        begin = time.monotonic()
        assert serve.end() == 0
        assert time.monotonic() - begin < LIMIT_S / 2
        for answer in lost:
            with pytest.raises(InferenceServerException, match=r"UNAVAILABLE|closed"):
                answer.get()
    assert "queued held requests when a stub died" in serve.printed
    serve.assert_nothing_left()


def test_the_server_may_open_as_many_files_as_the_hard_limit_allows(served, repository):
    """Clients use up the usual 1024, and then the host logs a line for each try to take one more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (256, most))
    serve = served("--model-repository", repository, *PORTS, preexec_fn=few)
    serve.ready()
    assert psutil.Process(serve.server_pid()).rlimit(psutil.RLIMIT_NOFILE) == (
        min(most, MAX_FILES),
        most,
    )


def test_a_second_signal_ends_it_at_once(served, repository):
    """An open HTTP connection would hold it for the whole exit timeout."""
    serve = served("--model-repository", repository, *PORTS[:3], "--exit-timeout=50")
    url = serve.ready()["http"].removeprefix("http://")
    with closing(http.client.HTTPConnection(url)) as client:
        client.request("GET", "/v2")
        client.getresponse().read()
        serve.process.send_signal(signal.SIGINT)
        serve._read_until("Signal (")
        serve.process.send_signal(signal.SIGINT)
        assert serve.end() == 128 + signal.SIGKILL

    serve.assert_nothing_left()


def test_an_open_http_connection_holds_it_no_longer_than_the_exit_timeout(served, repository):
    """The server then ends without finalising, with code 1; nothing is left all the same."""
    serve = served("--model-repository", repository, *PORTS)
    url = serve.ready()["http"].removeprefix("http://")
    begin = time.monotonic()
    with closing(http.client.HTTPConnection(url)) as client:
        client.request("GET", "/v2")
        client.getresponse().read()
        serve.process.terminate()
        assert serve.end() == 1

    assert time.monotonic() - begin < 3 + 20
    serve.assert_nothing_left()


def test_a_signal_while_models_load_ends_it(served, tmp_path):
    """The server has no handler yet and dies at once; its stubs and their memory go too."""
    models = write_model(tmp_path / "models", load_s=30)
    serve = served("--model-repository", models, *PORTS)
    serve.loading()

    serve.process.terminate()
    assert serve.end() == 128 + signal.SIGTERM
    serve.assert_nothing_left()


def test_a_killed_server_is_reported_and_cleaned_up_after(served, repository):
    """As by the kernel when memory runs out: the code is 137."""
    serve = served("--model-repository", repository, *PORTS)
    serve.ready()

    os.kill(serve.server_pid(), signal.SIGKILL)
    assert serve.end() == 128 + signal.SIGKILL
    serve.assert_nothing_left()


def test_when_serve_is_killed_the_server_ends(served, repository):
    """Its folder, which nobody could remove, goes when the next server starts."""
    serve = served("--model-repository", repository, *PORTS)
    serve.ready()

    serve.process.kill()
    serve.end()
    serve.assert_no_process_and_no_memory_is_left()
    ServerDirectory.make().remove()
    serve.assert_nothing_left()


def test_when_its_parent_is_killed_it_ends_in_order(repository, tmp_path):
    """A test run or a notebook that crashes leaves no server behind."""
    command = [*SERVE, "--model-repository", str(repository), *PORTS, "--", QUICK_END]
    parent = f"import subprocess\nsubprocess.run({command!r})"
    with (tmp_path / "output").open("w+") as output:
        process = subprocess.Popen([sys.executable, "-c", parent], stdout=output, stderr=output)
        wait_until(lambda: "  metrics  http" in Path(output.name).read_text())
        serve = psutil.Process(process.pid).children()[0]
        run = Path(serve.children()[0].environ()["GE_RUNTIME_DIR"])

        process.kill()
        process.wait()
        serve.wait(LIMIT_S)
        assert processes_of(run) == []
        assert not run.parent.exists()


def test_a_port_in_use_is_told_before_anything_starts(served, repository):
    """One line that names the port, and exit code 2."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        serve = served("--model-repository", repository, f"--http-port={port}")

        assert serve.end() == 2
    assert serve.printed == f"ge-backend: port {port} of 127.0.0.1 is in use; choose another\n"


@pytest.mark.parametrize("host", ["localhost", "::1", "::"])
def test_it_listens_at_a_name_and_at_ipv6(served, repository, host):
    """What it prints can be asked; Triton itself knows no names, and IPv6 by two spellings."""
    if ":" in host and not has_ipv6():
        pytest.skip("no IPv6 here")
    serve = served("--model-repository", repository, *PATIENT, "--host", host)
    urls = serve.ready()
    assert doubled(urls["grpc"]) == [2, 4, 6]
    assert main(["health", "--ready", "--http", urls["http"]]) == 0
    with urllib.request.urlopen(urls["metrics"], timeout=10) as page:
        assert b"nv_inference" in page.read()
    serve.process.terminate()
    assert serve.end() == 0


def has_ipv6() -> bool:
    """Whether this machine has an address of IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_a_model_that_does_not_load_is_told_at_once(served, tmp_path):
    """With the server's own reason in the log's end, which the error shows."""
    models = write_model(tmp_path / "models", code="raise RuntimeError('no weights here')")
    log = tmp_path / "server.log"
    serve = served("--model-repository", models, *PORTS, "--log-file", log)

    assert serve.end() == 2
    assert serve.printed.startswith("ge-backend: tritonserver ended with code 1 as it started")
    assert "no weights here" in serve.printed


def test_further_arguments_reach_tritonserver(served, repository):
    """Here: which models to load, and none was named."""
    further = ["--", "--model-control-mode=explicit"]
    serve = served("--model-repository", repository, *PORTS, *further)
    url = serve.ready()["grpc"]

    with grpcclient.InferenceServerClient(url) as client:
        assert not client.is_model_ready("double")
        client.load_model("double")
        assert client.is_model_ready("double")
    assert doubled(url) == [2, 4, 6]


def test_clients_do_not_load_models_unless_they_may(served, repository):
    """A load may bring code along. What has died is loaded anew all the same."""
    serve = served("--model-repository", repository, *PORTS)
    urls = serve.ready()
    with (
        grpcclient.InferenceServerClient(urls["grpc"]) as client,
        closing(httpclient.InferenceServerClient(urls["http"].removeprefix("http://"))) as by_http,
    ):
        for call in (client.load_model, client.unload_model, by_http.load_model):
            with pytest.raises(InferenceServerException, match=KEY_HEADER):
                call("double")
        with pytest.raises(InferenceServerException, match=KEY_HEADER):
            client.get_model_repository_index()
        assert client.is_model_ready("double")

    kill_a_stub(serve)
    wait_until(lambda: main(["health", "--ready", "--http", urls["http"]]) == 0)
    assert doubled(urls["grpc"]) == [2, 4, 6]


def test_a_model_that_came_with_its_load_is_well_and_stays(explicit):
    """Its stubs lie in a folder of the host's: they were taken for dead, and the model for ill."""
    urls = explicit.urls
    tensors = [{"name": name, "data_type": "TYPE_FP32", "dims": [-1]} for name in ("x", "y")]
    config = {"backend": "python", "input": tensors[:1], "output": tensors[1:]}
    config["instance_group"] = [{"name": "mine", "count": 2, "kind": "KIND_CPU"}]
    config["parameters"] = {"with": {"string_value": "files"}}
    tripling = MODEL.format(load_s=0).replace("2 * a", "3 * a")
    with grpcclient.InferenceServerClient(urls["grpc"]) as client:
        client.load_model(
            "double", config=json.dumps(config), files={"file:1/model.py": tripling.encode()}
        )
    assert doubled(urls["grpc"]) == [3, 6, 9]
    wait_until(lambda: len(stubs_of(explicit.server_pid())) == 2)
    assert main(["health", "--http", urls["http"]]) == 0
    time.sleep(4 * PERIOD_S)
    assert doubled(urls["grpc"]) == [3, 6, 9]


@pytest.mark.parametrize("files", [False, True], ids=["configuration", "files"])
def test_a_model_is_reloaded_as_it_was_loaded(explicit, repository, files):
    """With the configuration, and the files, of its load request: never as another model."""
    urls = explicit.urls
    tripling = MODEL.format(load_s=0).replace("2 * a", "3 * a")
    other = repository / "double" / "1" / "tripling.py"
    other.write_text(tripling)
    tensors = [{"name": name, "data_type": "TYPE_FP32", "dims": [-1]} for name in ("x", "y")]
    config = {"backend": "python", "input": tensors[:1], "output": tensors[1:]}
    if files:
        config["parameters"] = {"with": {"string_value": "files"}}
    else:
        config["default_model_filename"] = other.name
    brought = {"file:1/model.py": tripling.encode()} if files else None
    with grpcclient.InferenceServerClient(urls["grpc"]) as client:
        client.load_model("double", config=json.dumps(config), files=brought)
    assert doubled(urls["grpc"]) == [3, 6, 9]
    wait_until(lambda: len(stubs_of(explicit.server_pid())) == 1)
    time.sleep(2 * PERIOD_S)  # the stub has been seen
    kill_a_stub(explicit)
    wait_until(lambda: main(["health", "--ready", "--http", urls["http"]]) == 0)
    assert doubled(urls["grpc"]) == [3, 6, 9]


def test_a_key_of_ones_own_for_one_protocol_leaves_the_other_closed(served, repository):
    """Who has it loads models by that one; what has died is loaded anew with it, too."""
    mine = "--http-restricted-api=model-repository:mine=1"
    serve = served("--model-repository", repository, *PORTS, "--", mine)
    urls = serve.ready()
    with (
        grpcclient.InferenceServerClient(urls["grpc"]) as client,
        closing(httpclient.InferenceServerClient(urls["http"].removeprefix("http://"))) as by_http,
    ):
        with pytest.raises(InferenceServerException, match=KEY_HEADER):
            client.load_model("double")
        with pytest.raises(InferenceServerException, match="expecting header 'mine'"):
            by_http.load_model("double")
        by_http.load_model("double", headers={"mine": "1"})
    kill_a_stub(serve)
    wait_until(lambda: main(["health", "--ready", "--http", urls["http"]]) == 0)
    assert doubled(urls["grpc"]) == [2, 4, 6]


def test_one_header_with_a_key_for_each_group_is_served_and_healthy(
    served, repository, monkeypatch, capsys
):
    """A request can show one of the keys. From elsewhere the command is given them, or told."""
    groups = ("health", "metadata", "inference", "model-config", "model-repository", "statistics")
    mine = [f"--http-restricted-api={group}:mine={group}" for group in groups]
    serve = served("--model-repository", repository, *PORTS, "--", *mine)
    urls = serve.ready()
    kill_a_stub(serve)
    wait_until(lambda: main(["health", "--ready", "--http", urls["http"]]) == 0)
    assert doubled(urls["grpc"]) == [2, 4, 6]

    monkeypatch.setattr(health, "server_at", lambda host, port: 0)
    assert main(["health", "--ready", "--http", urls["http"]]) == 1
    assert "403" in (told := capsys.readouterr().err)
    assert "expecting header 'mine'" in told
    assert main(["health", "--ready", "--http", urls["http"], *mine]) == 0


def test_it_loads_a_model_anew_where_nobody_reads_what_it_says(served, repository):
    """As behind a `tee` that has ended, or with a log on a full disk."""
    serve = served("--model-repository", repository, *PATIENT)
    serve.ready()
    serve.process.stdout.close()
    kill_a_stub(serve)
    serve.process.terminate()
    assert serve.process.wait(LIMIT_S) in {0, 1}  # as the server's end after a stub's
    serve.assert_nothing_left()


@pytest.mark.long
def test_a_server_stays_ready_while_one_of_its_models_is_reloaded(served, tmp_path):
    """As the deployment files start it: the other model serves all the while, and its pod stays."""
    write_model(tmp_path, load_s=3)
    shutil.copytree(tmp_path / "double", tmp_path / "other")
    serve = served("--model-repository", tmp_path, *PATIENT, "--", "--strict-readiness=false")
    urls = serve.ready()
    x = np.ones(3, np.float32)
    tensor = grpcclient.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    before = {stub.pid for stub in stubs_of(serve.server_pid())}
    (dying,) = (stub for stub in stubs_of(serve.server_pid()) if "double" in stub.models)
    os.kill(dying.pid, signal.SIGKILL)
    away = False
    with grpcclient.InferenceServerClient(urls["grpc"]) as client:

        def is_back() -> bool:
            nonlocal away
            assert client.is_server_ready()
            assert client.infer("other", [tensor]).as_numpy("y").tolist() == [2, 2, 2]
            reloaded = {stub.pid for stub in stubs_of(serve.server_pid())} - before
            ready = client.is_model_ready("double")
            away = away or not ready
            return bool(reloaded) and ready and away

        wait_until(is_back)
    assert doubled(urls["grpc"]) == [2, 4, 6]


def kill_a_stub(serve: Served) -> None:
    """Kill the only stub, and wait until there is another one."""
    (dead,) = stubs_of(serve.server_pid())
    os.kill(dead.pid, signal.SIGKILL)
    wait_until(lambda: {stub.pid for stub in stubs_of(serve.server_pid())} - {dead.pid})


def test_openais_api_is_served_beside_the_server(served, repository):
    """On this machine only; it ends with the server, and in order although a client stays."""
    serve = served("--model-repository", repository, *PATIENT, "--openai-port=0")
    serve.ready()
    serve._read_until("  openai ")
    url = re.search(r"^  openai   http://(127.0.0.1:\d+)/v1$", serve.printed, re.MULTILINE)[1]
    with closing(http.client.HTTPConnection(url)) as client:
        for path, told in (
            ("/health", {"ready": True}),
            ("/v1/models", {"object": "list", "data": []}),
        ):
            client.request("GET", path)
            answer = client.getresponse()
            assert (answer.status, json.loads(answer.read())) == (200, told)
        client.request("GET", "/metrics")
        assert b"nv_inference" in client.getresponse().read()
        serve.process.terminate()
        assert serve.end() == 0
    serve.assert_nothing_left()


def test_a_model_py_where_serve_is_called_does_no_harm(served, repository, tmp_path):
    """The server's working directory is an empty one: its stubs import from there first."""
    (tmp_path / "model.py").write_text("raise RuntimeError('hijacked')")
    path = Path(sys.modules["ge_backend"].__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(path)}
    serve = served("--model-repository", repository, *PORTS, cwd=tmp_path, env=environment)

    assert doubled(serve.ready()["grpc"]) == [2, 4, 6]
