"""Orders, preemption, buckets and the end of a model that generates text, on the real server."""

import shutil
import threading

import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from builders.metrics import metric
from builders.null_models import comes_true
from builders.servers import server_options
from builders.standstill import standing_still
from builders.text_stream import GREEDY, TextStream
from builders.writer import PROMPTS, make_writer
from ge_tools.tritonserver import TritonServer

ONE = {"max_num_seqs": "1"}
MODELS = {
    "urgent": {**ONE, "scheduling": "priority"},
    "shortest": {**ONE, "scheduling": "sjf"},
    "together": {"stream_interval": "5"},
    "swapping": {
        "preemption": "auto",
        "swap_bytes": "1MiB",
        "kv_cache_bytes": "96KiB",
        "block_size": "4",
        "max_num_batched_tokens": "64",
        "prefill_chunk": "16",
        "buckets": "file:buckets.txt",
        "prefix_cache": "off",
    },
}
BUCKETS = "([1, 4], 1, [16, 64])\n(1, [8, 16], 64)\n"
BLOCKER = {**GREEDY, "max_tokens": 120}


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """One checkpoint under several names, each with its settings."""
    models = tmp_path_factory.mktemp("models")
    for name, settings in MODELS.items():
        lines = [
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
            for key, value in settings.items()
        ]
        (models / name).mkdir()
        (models / name / "config.pbtxt").write_text("\n".join(['backend: "ge"', *lines]))
        (models / name / "buckets.txt").write_text(BUCKETS)
    (models / "urgent" / "1").mkdir()
    made = make_writer(models / "urgent" / "1", positions=16384)
    for name in ("shortest", "together"):
        shutil.copytree(made.folder, models / name / "1")
    (models / "swapping" / "1").mkdir()
    make_writer(models / "swapping" / "1")  # the same weights; its buckets end at 256 tokens
    return made


@pytest.fixture(scope="module")
def server(triton_server, writer):
    explicit = ("--model-control-mode=explicit", "--load-model=*")
    return triton_server(writer.folder.parent.parent, arguments=explicit)


@pytest.fixture
def client(server):
    with grpcclient.InferenceServerClient(server.grpc) as client:
        yield TextStream(client)


def executions(host, model):
    """Return how many requests of this model Triton has handed over, answered or not."""
    return host.get_inference_statistics(model).model_stats[0].inference_count


def order_behind_a_blocker(server, client, model, *sampling):
    """Return the order in which requests end that all waited while another one had the only place.

    The other one has it when its first text is here: two that come before a first step are sorted.
    Its client goes away once they wait, which is long before its text would be over.
    """
    long = {**GREEDY, "max_tokens": 16000}
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        blocker = TextStream(connected)
        blocker.ask(model=model, text_input="a", stream=[True], sampling=long)
        blocker.next()
        with standing_still(server):  # waiting counts for who came earlier
            for given in sampling:
                client.ask(model=model, text_input=PROMPTS[0], sampling={**GREEDY, **given})
        waiting = len(sampling)
        assert comes_true(lambda: metric(server, "ge_text_waiting", model=model) == waiting)
        connected.stop_stream(cancel_requests=True)
    ended = []
    while len(ended) < len(sampling):
        number, _, final = client.next()
        ended += [number] if final else []
    return ended


def test_the_most_urgent_request_goes_first(server, client):
    """By its own `priority`, the smaller the earlier, whatever the order of coming."""
    given = [{"priority": 2}, {"priority": 0}, {"priority": 1}, {"priority": 0}]
    assert order_behind_a_blocker(server, client, "urgent", *given) == [1, 3, 2, 0]


def test_the_shortest_request_goes_first(server, client):
    """By prompt and limit together; equal ones in the order of coming."""
    given = [{"max_tokens": 150}, {"max_tokens": 4}, {"max_tokens": 80}, {"max_tokens": 4}]
    assert order_behind_a_blocker(server, client, "shortest", *given) == [1, 3, 2, 0]


def test_who_has_to_make_room_loses_no_token(server, client, writer):
    """In buckets of a file, with a cache too small for all, swapped or computed again."""
    short = {**GREEDY, "max_tokens": 60, "stop_token_ids": list(range(300))}
    for _ in range(40):  # these end at once, so the next ones of that limit are expected to
        client.ask(model="swapping", text_input="a", sampling=short)
    client.wait()
    long = {**GREEDY, "max_tokens": 60}
    first = client.sent
    with standing_still(server):
        for prompt in PROMPTS:
            client.ask(model="swapping", text_input=prompt, outputs=("output_ids",), sampling=long)
    ids = {}
    while len(ids) < len(PROMPTS):
        number, tensors, _ = client.next()
        ids |= {number: tensors["output_ids"]} if tensors else {}
    assert ids == {first + n: writer.truth(prompt, 60) for n, prompt in enumerate(PROMPTS)}
    series = "ge_text_preempted_total"
    assert comes_true(lambda: metric(server, series, model="swapping", how="swapped_in") > 0)
    assert comes_true(lambda: metric(server, "ge_text_buckets_total", bucket="4x1x64") > 0)
    assert metric(server, "ge_text_unplanned_groups_total", model="swapping") == 0


def test_tokens_of_a_stream_come_together_but_for_the_first(client, writer):
    """All of them, in their order; more than were asked for where the client is slow."""
    for prompt in PROMPTS:
        client.ask(
            model="together",
            text_input=prompt,
            stream=[True],
            outputs=("output_ids",),
            sampling={**GREEDY, "max_tokens": 22},
        )
    for prompt, parts in zip(PROMPTS, client.wait().values(), strict=True):
        ids = [part["output_ids"] for part in parts]
        assert 1 < len(ids) <= 1 + 4 + 1
        assert all(len(each) >= 5 for each in ids[1:-1])
        assert [token for each in ids for token in each] == writer.truth(prompt, 22)


def test_the_device_is_seen(server, client):
    """A model that generates text says of its device what other models do."""
    client.ask(model="urgent", text_input="a")
    client.wait()
    assert comes_true(lambda: metric(server, "ge_device_up", model="urgent", device="cpu") == 1)
    assert comes_true(lambda: metric(server, "ge_run_seconds_total", model="urgent") > 0)


def test_unloading_lets_texts_end(server, client, writer):
    """Who is being served gets every token; who comes later is refused; loaded again, it serves."""
    before = executions(client.client, "shortest")
    client.ask(model="shortest", text_input="a", stream=[True], sampling=BLOCKER)
    waiting = client.ask(
        model="shortest", text_input=PROMPTS[0], outputs=("output_ids",), sampling=BLOCKER
    )
    client.next()
    assert comes_true(lambda: executions(client.client, "shortest") == before + client.sent)
    with grpcclient.InferenceServerClient(server.grpc) as host:
        unloading = threading.Thread(target=host.unload_model, args=("shortest",))
        unloading.start()
        answers = client.wait()
        assert answers[waiting][0]["output_ids"] == writer.truth(PROMPTS[0], 120)
        unloading.join(60)
        assert comes_true(lambda: not host.is_model_ready("shortest"), seconds=20)
        client.ask(model="shortest", text_input="a")
        with pytest.raises(InferenceServerException, match="shortest"):
            client.next()
        host.load_model("shortest")
        again = TextStream(host)
        again.ask(model="shortest", text_input="a", outputs=("output_ids",))
        ((tensors,),) = again.wait().values()
        assert tensors["output_ids"] == writer.truth("a", GREEDY["max_tokens"])


def test_a_server_that_stops_lets_texts_end(installation, writer, tmp_path):
    """As long as its exit timeout lasts: each text is whole, those that still waited too."""
    shutil.copytree(writer.folder.parent, tmp_path / "models" / "urgent")
    options = server_options(tmp_path / "models", log_file=tmp_path / "log", exit_timeout_s=20)
    with (
        TritonServer(installation, options) as server,
        grpcclient.InferenceServerClient(server.grpc) as host,
    ):
        stream = TextStream(host)
        stream.ask(model="urgent", text_input="a", stream=[True], sampling=BLOCKER)
        for _ in range(3):
            stream.ask(model="urgent", text_input="a", outputs=("output_ids",), sampling=BLOCKER)
        stream.next()
        assert comes_true(lambda: executions(host, "urgent") == stream.sent)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        answers = stream.wait()
        host.stop_stream()  # an open one, idle or not, holds the server up to its exit timeout
        stopping.join(60)
        truth = writer.truth("a", BLOCKER["max_tokens"])
        assert [answers[number][0]["output_ids"] for number in (1, 2, 3)] == [truth] * 3
        assert "Exiting immediately" not in (tmp_path / "log").read_text()
