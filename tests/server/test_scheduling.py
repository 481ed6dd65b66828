"""The host's scheduling with models of this backend, and the backend's own queue.

What would depend on time depends on runs that are held until the test lets them go on.
"""

import contextlib
import http.client
import json
import re
import threading
import time
from pathlib import Path

import psutil
import pytest
from tritonclient.utils import InferenceServerException

from builders.null_models import comes_true
from builders.scheduled import ALSO_HELD, FAILING, HELD, Scheduled, write_held
from builders.standstill import standing_still
from fakes.null_device import EXECUTORS
from ge_tools.tritonserver.abilities import ABILITIES

ONE = "instance_group [ { count: 1 kind: KIND_CPU } ]"
PREFERRING = f"""
{ONE}
dynamic_batching {{ preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 60000000 }}
"""
TAKING_TWO = f"{ONE} dynamic_batching {{ preferred_batch_size: [ 2 ] }}"
DELAYING = f"{ONE} dynamic_batching {{ max_queue_delay_microseconds: 1000000 }}"
LEVELS = f"""
{ONE}
dynamic_batching {{
  priority_levels: 4
  default_priority_level: 2
  priority_queue_policy {{ key: 1 value {{ max_queue_size: 1 }} }}
  priority_queue_policy {{
    key: 3 value {{ timeout_action: REJECT default_timeout_microseconds: 1000 }}
  }}
  priority_queue_policy {{
    key: 4 value {{ timeout_action: DELAY default_timeout_microseconds: 1000 }}
  }}
}}
"""
LIMITED = """
dynamic_batching { }
instance_group [ {
  count: 1 kind: KIND_CPU
  rate_limiter { resources [ { name: "turn" count: 1 } ] }
} ]
"""
WARMED = """
dynamic_batching { }
model_warmup [
  {
    name: "two rows"
    batch_size: 2
    inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }
  }
]
"""
WARMED_OFTEN = """
dynamic_batching { }
model_warmup [
  {
    name: "twice"
    batch_size: 8
    count: 2
    inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }
  },
  {
    name: "once"
    batch_size: 8
    inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }
  }
]
"""
PENDING = "nv_inference_pending_request_count"
A_MINUTE = 60_000_000
SCALER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "npu.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the files of held runs are."""
    return tmp_path_factory.mktemp("held")


@pytest.fixture(scope="module")
def server(triton_server, tmp_path_factory, folder):
    """A server with one lane for most of its models: a held run keeps every other waiting."""
    models = tmp_path_factory.mktemp("models")
    write_held(models, "preferring", folder, PREFERRING, rows=8)
    write_held(models, "delaying", folder, DELAYING, rows=8)
    write_held(models, "taking_two", folder, TAKING_TWO, rows=8)
    write_held(models, "levels", folder, LEVELS)
    ordered = "dynamic_batching { preserve_ordering: true } instance_group [ { count: 2 } ]"
    write_held(models, "ordered", folder, ordered, device="null:1", lanes=2)
    write_held(models, "plain", folder, ONE)
    cached = ONE + "response_cache { enable: true }"
    write_held(models, "cached", folder, cached)
    write_held(models, "cached_errors", folder, cached)
    write_held(models, "warmed", folder, WARMED + ONE, rows=4)
    write_held(models, "warmed_often", folder, WARMED_OFTEN + ONE, rows=8, max_queue_size=1)
    write_held(models, "limited", folder, LIMITED, device="null:2")
    write_held(models, "limited_too", folder, LIMITED, device="null:3")
    some = ONE + "version_policy { specific { versions: [ 1, 3 ] } }"
    write_held(models, "versions", folder, some, versions=(1, 2, 3))
    bounds = {"max_queue_size": 2, "default_timeout_microseconds": A_MINUTE}
    write_held(models, "bounded", folder, ONE + "dynamic_batching { }", rows=2, **bounds)
    by_row = {"buckets.rows": "1", "warmup": "on", "cost_ms": 5}
    write_held(models, "large", folder, ONE, rows=8, **by_row)
    write_held(models, "small", folder, ONE, rows=1, **by_row)
    return triton_server(
        models,
        environment={**EXECUTORS, "GE_LANES": "1"},
        arguments=(
            "--disable-auto-complete-config",  # all are complete, and it takes a stub for each
            "--model-control-mode=explicit",
            "--load-model=*",
            "--rate-limit=execution_count",
            "--cache-config=local,size=1048576",
        ),
    )


@pytest.fixture
def host(server, folder):
    """A client; whatever a test holds ends with it."""
    scheduled = Scheduled(server, folder)
    yield scheduled
    scheduled.close()


def refused(answer):
    """Return the text with which a request was refused as UNAVAILABLE."""
    with pytest.raises(InferenceServerException) as caught:
        answer.get()
    assert "UNAVAILABLE" in caught.value.status()
    return caught.value.message()


# Batches


def test_a_preferred_batch_goes_at_once(host):
    """Four requests are a batch as soon as they are there, long before the delay has passed."""
    begun = time.monotonic()
    answers = [host.send("preferring", value) for value in range(4)]
    assert [answer.get().as_numpy("y")[0, 0] for answer in answers] == [0, 1, 2, 3]
    assert time.monotonic() - begun < 50
    assert host.comes_to_batches({4: 1}, "preferring")


def test_others_wait_for_company_as_long_as_they_may(host):
    """Three are fewer than any preferred number: they go together when the delay has passed."""
    begun = time.monotonic()
    with standing_still(host.server):
        answers = [host.send("delaying", value) for value in range(3)]
    for answer in answers:
        answer.get()
    assert time.monotonic() - begun >= 1
    assert host.comes_to_batches({3: 1}, "delaying")


def test_a_preferred_size_bounds_what_an_instance_takes_at_once(host):
    """Without a delay no batch is larger, but for the one with a request that is larger itself."""
    held = host.hold("taking_two")
    answers = [host.send("taking_two", value) for value in range(7)]
    assert comes_true(lambda: host.figure(PENDING, model="taking_two") >= 3)
    large = host.send("taking_two", 9, rows=5)
    host.let_go()
    assert [answer.get().as_numpy("y")[0, 0] for answer in answers] == [*range(7)]
    assert large.get().as_numpy("y").tolist() == [[9]] * 5
    held.get()
    assert comes_true(lambda: sum(n * m for n, m in host.batches("taking_two").items()) == 13)
    batches = host.batches("taking_two")
    assert [batches[size] for size in batches if size > 2] == [1]
    assert batches[2]


def test_answers_keep_their_order(server, host):
    """Two instances run side by side; what is done sooner waits for what came before."""
    if server.abilities.has("unordered_instances"):
        pytest.skip(ABILITIES["unordered_instances"].what)
    first = host.hold("ordered")
    second = host.send("ordered", 5)
    assert host.comes_to(2, "ge_requests_total", model="ordered")
    third = host.hold("ordered", ALSO_HELD)  # so the second has left its instance
    assert not second.done
    host.let_go()
    assert [first.get().as_numpy("y")[0, 0], second.get().as_numpy("y")[0, 0]] == [HELD, 5]
    host.let_go(ALSO_HELD)
    third.get()


# Models that share a device


def test_what_a_model_has_waiting_holds_up_no_other(host):
    """Eight runs of one wait for the only lane; another model's is done before they have ended."""
    large = host.hold("large", rows=8)
    small = host.send("small", 5)
    assert host.comes_to(1, "ge_requests_total", model="small")
    for _ in range(6):  # it may not have come to the executor yet when the first ends
        host.let_go()
        assert comes_true(host.held)
    assert comes_true(lambda: small.done)
    assert not large.done
    host.let_go()
    assert comes_true(host.held)
    host.let_go()
    assert large.get().as_numpy("y").tolist() == [[HELD]] * 8
    assert small.get().as_numpy("y").tolist() == [[5]]


# Priorities, and what a queue refuses


def test_a_higher_priority_goes_first(host):
    """It came last; the others still wait when it runs."""
    first = host.hold("levels")
    others = [host.send("levels", value) for value in range(3)]
    assert host.comes_to(3, PENDING, model="levels")
    urgent = host.send("levels", ALSO_HELD, priority=1)
    assert host.comes_to(4, PENDING, model="levels")
    host.let_go()
    assert comes_true(lambda: host.held(ALSO_HELD), 30)
    assert [answer.done for answer in others] == [False] * 3
    host.let_go(ALSO_HELD)
    for answer in (first, urgent, *others):
        answer.get()


def test_a_level_has_its_own_queue_size(host):
    """Level 1 takes one request, whatever waits in the others."""
    first = host.hold("levels")
    others = [host.send("levels", value) for value in range(3)]
    assert host.comes_to(3, PENDING, model="levels")
    urgent = host.send("levels", 8, priority=1)
    assert host.comes_to(4, PENDING, model="levels")
    assert "maximum queue size" in refused(host.send("levels", 9, priority=1))
    host.let_go()
    for answer in (first, urgent, *others):
        answer.get()


def test_a_level_refuses_or_delays_what_is_late(host):
    """Level 3 refuses it; level 4 serves it all the same."""
    first = host.hold("levels")
    delayed = host.send("levels", ALSO_HELD, priority=4)
    assert host.comes_to(1, PENDING, model="levels")
    rejected = host.send("levels", 3, priority=3)
    assert host.comes_to(2, PENDING, model="levels")
    time.sleep(0.002)  # so that both are late, which is all that matters
    host.let_go()
    assert "timeout expired" in refused(rejected)
    assert comes_true(lambda: host.held(ALSO_HELD), 30)
    host.let_go(ALSO_HELD)
    assert delayed.get().as_numpy("y")[0, 0] == ALSO_HELD
    first.get()


# What reaches the executor


def test_a_timeout_ends_the_wait_for_the_device(host):
    """Another model's run holds the only lane: the request is refused meanwhile, and not run."""
    first = host.hold("levels")
    text = refused(host.send("plain", 1, timeout=50_000))
    assert "waited" in text
    assert "too late to start" in text
    assert host.held()
    host.let_go()
    first.get()


def test_a_cancelled_request_is_not_run(host):
    """While another model's run holds the only lane; its value would hold the lane as well."""
    first = host.hold("levels")
    given_up = host.send("plain", ALSO_HELD)
    assert host.comes_to(0, PENDING, model="plain")
    given_up.call.cancel()
    told = {"model": "plain", "status": "CANCELLED"}
    assert host.comes_to(1, "ge_request_failures_total", **told)
    host.let_go()
    first.get()
    assert host.ask("plain", 2) == 2
    assert not host.held(ALSO_HELD)


# The backend's own queue


def test_a_full_queue_refuses_at_once(host):
    """Two may wait while a batch is served; the next is refused before anything ends."""
    first = host.hold("bounded")
    waiting = [host.send("bounded", value) for value in (1, 2)]
    assert host.comes_to(2, "ge_backlog_requests", model="bounded")
    assert "max_queue_size" in refused(host.send("bounded", 3))
    assert host.held()
    host.let_go()
    assert [answer.get().as_numpy("y")[0, 0] for answer in (first, *waiting)] == [HELD, 1, 2]
    assert host.comes_to(0, "ge_backlog_requests", model="bounded")


def waited_s(host, model, before=(0, 0, 0, 0)):
    """Return what the autoscaler would see of a model since `before`, and what it looks at now."""
    names = re.findall(r"increase\((\w+)\[", SCALER.read_text())
    totals = [f"{name.removesuffix('_total')}_total" for name in names]  # as the parser calls them
    now = [host.figure(name, model=model) for name in totals]
    queue_us, answered, backlog_s, taken = (b - a for a, b in zip(before, now, strict=True))
    return max(queue_us / 1e6 / max(answered, 1), backlog_s / max(taken, 1)), now


@pytest.mark.parametrize(
    ("model", "waiting"), [("plain", PENDING), ("bounded", "ge_backlog_requests")]
)
def test_the_autoscaler_sees_who_waits(host, model, waiting):
    """In the host's queue or in the model's own: two of three requests waited a second."""
    _, before = waited_s(host, model)
    answers = [host.hold(model), host.send(model, 1), host.send(model, 2)]
    assert host.comes_to(2, waiting, model=model)
    time.sleep(1)
    host.let_go()
    for answer in answers:
        answer.get()
    assert comes_true(lambda: waited_s(host, model, before)[0] > 0.6, 30)


def test_who_waits_too_long_is_refused(host):
    """As its time passes, while the batch before it still runs; the others are served."""
    first = host.hold("bounded")
    in_time = host.send("bounded", 2)
    assert host.comes_to(1, "ge_backlog_requests", model="bounded")
    late = host.send("bounded", 1, timeout=1000)
    assert "had to begin" in refused(late)
    assert host.held()
    host.let_go()
    assert [answer.get().as_numpy("y")[0, 0] for answer in (first, in_time)] == [HELD, 2]


def test_who_gives_up_while_waiting_is_not_run(host):
    """Once the host has noticed, which takes it a moment, the request is not even sent to run."""
    told = {"model": "bounded", "status": "CANCELLED"}
    before = host.figure("ge_request_failures_total", **told)
    for patience_s in (0.05, 0.5, 5):
        first = host.hold("bounded")
        given_up = host.send("bounded", 1)
        assert host.comes_to(1, "ge_backlog_requests", model="bounded")
        given_up.call.cancel()
        time.sleep(patience_s)
        host.let_go()
        first.get()
        assert host.ask("bounded", 2) == 2
        if comes_true(lambda: host.figure("ge_request_failures_total", **told) > before, 1):
            return
    pytest.fail("it was served, though its client had given up")


# The cache, the warm-up, the rate limiter, versions


def test_cached_answers_know_tensors_only(host):
    """The same tensors get the same answer, whatever request parameters or sequence they have."""
    assert host.ask("cached", 4) == 4
    requests = host.figure("ge_requests_total", model="cached")
    assert host.ask("cached", 4, parameters={"other": "value"}) == 4
    assert host.ask("cached", 4, sequence_id=9, sequence_start=True) == 4
    assert host.ask("cached", 5) == 5
    assert host.comes_to(2, "nv_cache_num_hits_per_model_total", model="cached")
    assert host.comes_to(2, "ge_requests_total", model="cached")
    assert requests <= 1


def test_errors_are_cached_as_answers_without_outputs(host):
    """By the server, for any backend; docs/scheduling.md warns of it."""
    with pytest.raises(InferenceServerException, match="fault was injected"):
        host.send("cached_errors", FAILING).get()
    assert host.send("cached_errors", FAILING).get().as_numpy("y") is None


def test_warm_up_goes_the_whole_way(host):
    """Triton sends `batch_size` requests of one row each before the model is ready."""
    assert host.comes_to(2, "ge_requests_total", model="warmed")
    assert host.comes_to_batches({2: 1}, "warmed")


def test_warm_up_knows_no_bounds(host):
    """More than may wait, batch after batch; what comes then goes through the model's queue."""
    assert host.comes_to(24, "ge_requests_total", model="warmed_often")
    assert host.comes_to_batches({8: 3}, "warmed_often")
    first = host.hold("warmed_often")
    waiting = host.send("warmed_often", 1)
    assert host.comes_to(1, "ge_backlog_requests", model="warmed_often")
    assert "max_queue_size" in refused(host.send("warmed_often", 2))
    host.let_go()
    assert [answer.get().as_numpy("y")[0, 0] for answer in (first, waiting)] == [HELD, 1]


def test_models_with_one_resource_take_turns(host):
    """Each has an executor of its own, so nothing else keeps them apart."""
    first = host.hold("limited")
    second = host.send("limited_too", ALSO_HELD)
    assert host.comes_to(1, PENDING, model="limited_too")
    # On this server nothing at all begins meanwhile: the one that waits stands before all others.
    third = host.send("plain", 1)
    assert host.comes_to(1, PENDING, model="plain")
    assert not host.held(ALSO_HELD)
    host.let_go()
    assert comes_true(lambda: host.held(ALSO_HELD), 30)
    host.let_go(ALSO_HELD)
    for answer in (first, second, third):
        answer.get()


def test_a_version_policy_chooses_what_is_served(host):
    """Two of three versions are there, each with its own graph; the latest is the default."""
    ready = [host.client.is_model_ready("versions", version) for version in "123"]
    assert ready == [True, False, True]
    assert host.ask("versions", 6, model_version="1") == 6
    assert host.ask("versions", 6, model_version="3") == host.ask("versions", 6) == 0


# Loading and unloading


def test_files_come_in_with_a_changed_configuration_only(host, server):
    """Beside one that is as it was, this server passes them over and says that it has loaded."""
    before = family(server)
    tensor = {"dtype": "FP32", "dims": ["batch", 1]}
    declared = {"data_type": "TYPE_FP32", "dims": [1]}
    config = {
        "backend": "ge",
        "max_batch_size": 1,
        "input": [{"name": "x", **declared}],
        "output": [{"name": "y", **declared}],
        "parameters": {"device": {"string_value": "null"}, "warmup": {"string_value": "off"}},
    }

    def answer(compute, **more):
        graph = {
            "inputs": [{"name": "x", **tensor}],
            "outputs": [{"name": "y", **tensor, **compute}],
        }
        config["parameters"] |= {key: {"string_value": value} for key, value in more.items()}
        files = {"file:1/model.null": json.dumps(graph).encode()}
        host.client.load_model("brought", config=json.dumps(config), files=files)
        return host.ask("brought", 6)

    assert answer({"compute": "echo", "of": "x"}) == 6
    assert answer({"compute": "zeros"}) == 6
    assert answer({"compute": "zeros"}, max_elements="4") == 0
    host.client.unload_model("brought")
    assert comes_true(lambda: family(server) == before, 60)  # the next tests count it, too


# Under traffic


class Traffic:
    """Two threads that ask one model again and again until they are told to stop."""

    def __init__(self, host, model):
        self.answers, self.refusals, self.wrong = 0, [], []
        self._ask = lambda value: host.ask(model, value)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(2)]
        for thread in self._threads:
            thread.start()

    def _work(self, value):
        while not self._stop.is_set():
            try:
                answer = self._ask(value)
            except InferenceServerException as error:
                self.refusals.append(error)
            else:
                self.answers += 1
                if answer != value:
                    self.wrong.append(answer)

    def goes_on(self):
        """Wait until some more was answered."""
        enough = self.answers + 20
        assert comes_true(lambda: self.answers >= enough, 60)

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()


def family(server):
    """Return what a server's stubs serve, and how many files each of its executors holds.

    An executor belongs to nobody: once the stub that started it has ended, it is no descendant.
    """
    stubs, executors = [], []
    for process in psutil.Process(server.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            stubs += [part for part in process.cmdline() if part.endswith("/1/model.py")]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if "ge_backend.executor.process.main" in line and str(server.directory.run) in line:
                executors.append(process.num_fds())
    return sorted(stubs), sorted(executors)


@pytest.mark.parametrize("model", ["plain", "bounded"])
def test_reloading_under_traffic_loses_nothing(host, server, model):
    """A changed configuration is swapped in while requests are in flight: each is answered."""
    before = family(server)
    traffic = Traffic(host, model)
    config = host.client.get_model_config(model, as_json=True)["config"]
    for most in ("400", "500"):
        traffic.goes_on()
        config["parameters"]["max_graphs"] = {"string_value": most}
        host.client.load_model(model, config=json.dumps(config))
    traffic.goes_on()
    traffic.stop()
    assert (traffic.refusals, traffic.wrong) == ([], [])
    given = host.client.get_model_config(model, as_json=True)["config"]["parameters"]
    assert given["max_graphs"] == {"string_value": "500"}
    seen = []
    assert comes_true(lambda: seen.append(family(server)) or seen[-1] == before, 60), seen[-1]


@pytest.mark.parametrize("model", ["plain", "bounded"])
def test_unloading_under_traffic_answers_everything(host, server, model):
    """In flight is answered, later is refused as unknown; loaded again it serves as before."""
    before = family(server)
    traffic = Traffic(host, model)
    traffic.goes_on()
    host.client.unload_model(model)
    assert comes_true(lambda: traffic.refusals)
    assert not host.client.is_model_ready(model)
    host.client.load_model(model)
    traffic.goes_on()
    traffic.stop()
    assert traffic.wrong == []
    assert {str(error.status()) for error in traffic.refusals} <= {
        "StatusCode.UNAVAILABLE",
        "StatusCode.NOT_FOUND",
    }
    seen = []
    assert comes_true(lambda: seen.append(family(server)) or seen[-1] == before, 60), seen[-1]


def test_a_client_sees_its_connection_end_though_a_model_was_loaded_meanwhile(host, server):
    """The host has each new stub inherit all connections that are open; ours lets go of them."""
    with contextlib.closing(http.client.HTTPConnection(server.http, timeout=20)) as connection:
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        host.client.unload_model("plain")
        assert comes_true(lambda: not host.client.is_model_ready("plain"))
        host.client.load_model("plain")
        connection.sock.sendall(
            b"GET /v2/health/live HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
        )
        answer = b"".join(iter(lambda: connection.sock.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200")
