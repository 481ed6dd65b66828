"""The connection to a server that is made up; tests/server/test_openai.py has the real one."""

import asyncio
import concurrent.futures
import itertools
import threading
import time
from dataclasses import replace

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ge_openai import triton
from ge_openai.api_error import ApiError
from ge_openai.models import Ability, Describer, ServedModel
from ge_openai.text_call import TextCall
from ge_openai.triton import OtherDescriptionError, TritonConnection

ANYWHERE = "127.0.0.1:0"


class Ready(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers that it is ready."""

    def ServerReady(self, request, context):  # noqa: N802 - its name in the protocol
        return service_pb2.ServerReadyResponse(ready=True)


class Reloaded(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A model that is loaded anew: one that embeds, for fewer texts or for something else.

    Attributes:
        embeds: it does not write texts.
        own: where it writes them it describes itself.
    """

    rows = 4
    embeds = True
    own = False

    def ModelConfig(self, request, context):  # noqa: N802
        answer = service_pb2.ModelConfigResponse()
        config = answer.config
        config.name, config.max_batch_size = request.name, self.rows
        if self.embeds:
            config.input.add(name="text", data_type="TYPE_STRING", dims=[1])
            config.output.add(name="vector", data_type="TYPE_FP32", dims=[2])
        else:
            for tensor in ("text_input", "sampling_parameters", "stream"):
                config.input.add(name=tensor)
            config.output.add(name="text_output")
        if self.own:
            config.input.add(name="description")
        return answer

    def ModelStreamInfer(self, requests, context):  # noqa: N802
        for request in requests:
            if not self.own and "description" in {each.name for each in request.inputs}:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unexpected 'description'")
            yield service_pb2.ModelStreamInferResponse()

    def ModelInfer(self, request, context):  # noqa: N802
        rows = request.inputs[0].shape[0]
        if rows > self.rows:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"batch-size must be <= {self.rows}")
        answer = service_pb2.ModelInferResponse()
        answer.outputs.add(name="vector", datatype="FP32", shape=[rows, 2])
        answer.raw_output_contents.append(b"\0" * 8 * rows)
        return answer


class Ensemble(service_pb2_grpc.GRPCInferenceServiceServicer):
    """An embedding ensemble of an ensemble whose step says how it tokenizes, to who knows another.

    Attributes:
        away: the step is not there.
    """

    away = False

    def ModelConfig(self, request, context):  # noqa: N802
        if self.away and request.name == "split":
            context.abort(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'split'")
        answer = service_pb2.ModelConfigResponse()
        config = answer.config
        config.name, config.max_batch_size = request.name, 4
        steps = {"whole": ("inner", "words"), "inner": ("split", "text")}
        text = {"whole": "sent", "inner": "words", "split": "text"}[request.name]
        config.input.add(name=text, data_type="TYPE_STRING", dims=[1])
        config.output.add(name="vector", data_type="TYPE_FP32", dims=[2])
        if request.name in steps:
            name, its = steps[request.name]
            config.ensemble_scheduling.step.add(model_name=name, input_map={its: text})
        else:
            config.input.add(name="description", data_type="TYPE_STRING", dims=[1], optional=True)
            config.output.add(name="description", data_type="TYPE_STRING", dims=[1])
        return answer

    def ModelInfer(self, request, context):  # noqa: N802
        shapes = {each.name: tuple(each.shape) for each in request.inputs}
        assert (request.model_name, shapes) == ("split", {"text": (1, 1), "description": (1, 1)})
        answer = service_pb2.ModelInferResponse()
        if request.raw_input_contents[1] != b"\1\0\0\0" + b"7":
            answer.outputs.add(name="description", datatype="BYTES", shape=[1])
            answer.raw_output_contents.append(b"\2\0\0\0{}")
        return answer


class Writers(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Two language models, one of them in two versions; none of the repository's API.

    Attributes:
        still: unset while the server stands still.
        writing: unset while it is busy with a prompt.
        lives: how often it is asked for that until it is busy no more.
        ready: what it says of itself.
        loading: how often it is asked in vain for a model that is loaded then.
        asked: for their configurations.
        beats: they show that they live.
        dead: the process of one of them has ended.
        heartbeats: of the process that writes, in the stead of an answer.
    """

    def __init__(self):
        self.beats, self.dead, self.heartbeats = False, False, 0
        self.still = threading.Event()
        self.still.set()
        self.writing = threading.Event()
        self.writing.set()
        self.lives = 0
        self.ready = True
        self.loading = 0
        self.asked = []
        self.read_whole = []  # of each description, whether its reader was there to the end

    def ServerLive(self, request, context):  # noqa: N802
        self.still.wait()
        self.lives -= 1
        if not self.lives:
            self.writing.set()
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request, context):  # noqa: N802
        self.still.wait()
        return service_pb2.ServerReadyResponse(ready=self.ready)

    def ModelStatistics(self, request, context):  # noqa: N802
        self.still.wait()
        served = [("reader", "1"), ("writer", "1"), ("writer", "3")]
        each = [service_pb2.ModelStatistics(name=name, version=number) for name, number in served]
        return service_pb2.ModelStatisticsResponse(model_stats=each)

    def ModelConfig(self, request, context):  # noqa: N802
        self.still.wait()
        self.asked.append(request.name)
        name = request.name.partition("\0")[0]  # as the host reads it
        if name == "reloaded":
            self.loading -= 1
        if name not in {"reader", "writer"} and (name != "reloaded" or self.loading >= 0):
            away = name in {"failed", "reloaded"}
            words = "has no available versions" if away else "is not found"
            message = f"Request for unknown model: '{name}' {words}"
            context.abort(grpc.StatusCode.NOT_FOUND, message)
        answer = service_pb2.ModelConfigResponse()
        answer.config.name = name
        for tensor in ("text_input", "sampling_parameters", "stream"):
            answer.config.input.add(name=tensor)
        if self.beats:
            answer.config.input.add(name="heartbeat")
        answer.config.output.add(name="text_output")
        return answer

    def ModelStreamInfer(self, requests, context):  # noqa: N802
        for request in requests:
            if "heartbeat" in {each.name for each in request.inputs}:
                assert self.beats
                for _ in range(self.heartbeats):
                    time.sleep(0.2)
                    yield service_pb2.ModelStreamInferResponse()
            self.still.wait()
            self.writing.wait()
            answer = service_pb2.ModelStreamInferResponse()
            outputs = [("text_output", b"\2\0\0\0hi"), ("finish_reason", b"\4\0\0\0stop")]
            if "description" in {each.name for each in request.inputs}:
                outputs = [("description", b"\2\0\0\0{}")]
            for name, block in outputs:
                answer.infer_response.outputs.add(name=name, datatype="BYTES", shape=[1])
                answer.infer_response.raw_output_contents.append(block)
            yield answer
            if outputs[0][0] == "description":
                time.sleep(0.1)  # for who cancels as soon as it has come
                self.read_whole.append(context.is_active())

    def ModelInfer(self, request, context):  # noqa: N802
        if self.dead:
            context.abort(grpc.StatusCode.INTERNAL, "Stub process 'writer_0_0' is not healthy.")
        self.still.wait()
        self.writing.wait()
        answer = service_pb2.ModelInferResponse()
        answer.outputs.add(name="vector", datatype="FP32", shape=[1, 2])
        answer.raw_output_contents.append(b"\0" * 8)
        return answer


CALL = TextCall(model="writer", prompt="a", sampling={}, stream=False, logprobs=False, counts=False)
EMBEDDER = ServedModel(
    name="writer", ability=Ability.EMBEDDING, rows=1, input="text", output="vector", size=2
)


async def written(connection):
    """Return what is written in answer to a prompt."""
    return [piece.text async for pieces in connection.write(CALL) for piece in pieces]


async def embedded(connection):
    """Return the vectors of a text."""
    return (await connection.vectors(EMBEDDER, ([b"a"],))).tolist()


@pytest.fixture
def writers():
    """A server of language models that is let go on in the end, and what asks it."""
    servicer = Writers()
    server, port = started(servicer)

    def asked(*works):
        async def ask():
            connection = TritonConnection(f"127.0.0.1:{port}")
            try:
                return [await work(connection) for work in works]
            finally:
                await connection.close()

        return asyncio.run(ask())

    yield servicer, asked
    servicer.still.set()
    servicer.writing.set()
    server.stop(0).wait()


def started(servicer, address=ANYWHERE):
    """Return a gRPC server that runs, and its port."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    server.start()
    return server, port


@pytest.fixture
def proxied(monkeypatch):
    """An environment whose proxy for everything cannot be reached."""
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")


def test_no_proxy_stands_between(proxied):
    """The server is the operator's own, most often on this machine."""
    server, port = started(Ready())

    async def ask():
        connection = TritonConnection(f"127.0.0.1:{port}")
        try:
            return await connection.ready()
        finally:
            await connection.close()

    assert asyncio.run(ask())
    server.stop(0).wait()


def test_a_server_that_is_back_is_seen_soon():
    """However long it was away: gRPC alone would wait longer each time, up to two minutes."""
    tried = []

    async def hang_up(_, writer):
        tried.append(time.monotonic())
        writer.close()

    async def ask():
        away = await asyncio.start_server(hang_up, "127.0.0.1", 0, reuse_port=True)
        address = f"127.0.0.1:{away.sockets[0].getsockname()[1]}"
        connection = TritonConnection(address)
        try:
            while len(tried) < 8:  # by itself gRPC tries 1, 2.6, 5.2, 9.3, 16, 27 and 44 s later
                assert not await connection.ready()
                await asyncio.sleep(0.05)
            back, _ = started(Ready(), address)
            away.close()
            while not await connection.ready():  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.05)
            back.stop(0).wait()
        finally:
            await connection.close()

    asyncio.run(asyncio.wait_for(ask(), 60))
    # A busy machine may be late with some of them.
    assert min(after - before for before, after in itertools.pairwise(tried[3:])) < 2.5


def test_a_server_that_stands_still_is_not_ready(writers, monkeypatch):
    """Who asks for the health gets an answer all the same."""
    monkeypatch.setattr(triton, "READY_TIMEOUT_S", 0.2)
    servicer, asked = writers
    servicer.still.clear()
    assert asked(lambda connection: asyncio.wait_for(connection.ready(), 20)) == [False]


def test_the_models_listed_are_those_that_are_served(writers):
    """Each once, whatever its versions, and without the repository, which may be closed."""
    _, asked = writers
    ((listed, names),) = asked(listed_and_remembered)
    assert listed == names == ["reader", "writer"]


async def listed_and_remembered(connection):
    models = await connection.models()
    return [model.name for model in models], sorted(connection._known)


@pytest.mark.parametrize(
    ("name", "ready", "status"),
    [
        ("nobody", True, 404),
        ("nobody", False, 404),
        ("failed", True, 404),
        ("failed", False, 503),
    ],
)
def test_a_model_that_is_not_served_is_unknown_or_not_ready(writers, name, ready, status):
    """Not ready is one that the server has, while it waits for some of its models."""
    servicer, asked = writers
    servicer.ready = ready
    with pytest.raises(ApiError) as told:
        asked(lambda connection: connection.model(name, Ability.TEXT))
    assert told.value.status == status


@pytest.mark.parametrize("loading", [1, 2])
def test_a_model_that_is_loaded_meanwhile_is_not_unknown(writers, loading):
    """It was away, and is there before or after the server says that it is ready: ask again."""
    servicer, asked = writers
    servicer.loading = loading
    with pytest.raises(ApiError) as told:
        asked(lambda connection: connection.model("reloaded", Ability.TEXT))
    assert told.value.status == 503
    (model,) = asked(lambda connection: connection.model("reloaded", Ability.TEXT))
    assert model.name == "reloaded"


def test_a_model_describes_itself(writers):
    """Where a prompt goes by another description, that is an error of its own, to try again."""
    servicer, asked = writers

    async def other(connection):
        with pytest.raises(OtherDescriptionError) as caught:
            async for _ in connection.write(replace(CALL, described="7f")):
                pass
        return caught.value.status

    assert asked(lambda connection: connection.description("writer"), other) == ["{}", 503]
    # Cancelled, it might hold the model in the server, which is then never unloaded.
    assert servicer.read_whole == [True, True]


def test_a_model_that_is_for_something_else_is_unknown(writers):
    """As if there were none; who asks for what it is for, gets it."""
    _, asked = writers
    assert asked(lambda connection: connection.model("writer", Ability.TEXT))[0].name == "writer"
    with pytest.raises(ApiError) as told:
        asked(lambda connection: connection.model("writer", Ability.EMBEDDING))
    assert told.value.code == "model_not_found"


def test_a_name_ends_nowhere_but_at_its_end(writers):
    """The host reads a name up to a NUL, and would serve the model of that name."""
    servicer, asked = writers
    with pytest.raises(ApiError) as told:
        asked(lambda connection: connection.model("writer\0 or another", Ability.TEXT))
    assert told.value.code == "model_not_found"
    assert servicer.asked == []


@pytest.mark.parametrize(
    "work",
    [
        lambda connection: connection.models(),
        lambda connection: connection.model("writer", Ability.TEXT),
        written,
        embedded,
    ],
)
def test_a_server_that_stands_still_is_unavailable(writers, monkeypatch, work):
    """Whatever it is asked, and soon."""
    monkeypatch.setattr(triton, "READY_TIMEOUT_S", 0.2)
    servicer, asked = writers
    servicer.still.clear()
    begun = time.monotonic()
    with pytest.raises(ApiError, match="gives no answer") as told:
        asked(lambda connection: asyncio.wait_for(work(connection), 20))
    assert told.value.status == 503
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(("work", "truth"), [(written, ["hi"]), (embedded, [[0, 0]])])
def test_a_server_that_is_busy_is_waited_for(writers, monkeypatch, work, truth):
    """It answers whoever asks whether it lives."""
    monkeypatch.setattr(triton, "READY_TIMEOUT_S", 1.0)
    servicer, asked = writers
    servicer.writing.clear()
    servicer.lives = 2
    assert asked(work) == [truth]


async def written_beating(connection):
    """Return what a model writes whose inputs are known."""
    await connection.model("writer", Ability.TEXT)
    return await written(connection)


def test_a_model_whose_process_has_died_is_unavailable(writers, monkeypatch):
    """Its streams have no end, and no heartbeat; the server lives."""
    monkeypatch.setattr(triton, "READY_TIMEOUT_S", 0.2)
    servicer, asked = writers
    servicer.beats = True
    servicer.writing.clear()
    with pytest.raises(
        ApiError, match="the process that serves the model 'writer' has died"
    ) as told:
        asked(lambda connection: asyncio.wait_for(written_beating(connection), 20))
    assert (told.value.status, told.value.param) == (503, "model")


def test_a_heartbeat_shows_that_a_text_is_in_the_making(writers, monkeypatch):
    """However long it takes, and is nothing of the text."""
    monkeypatch.setattr(triton, "READY_TIMEOUT_S", 0.5)
    servicer, asked = writers
    servicer.beats, servicer.heartbeats = True, 15
    assert asked(written_beating) == [["hi"]]


def test_a_model_without_a_heartbeat_is_not_asked_for_one(writers):
    """Such as one of an older release, which would refuse the input."""
    _, asked = writers
    assert asked(written_beating) == [["hi"]]


def test_the_servers_word_for_a_dead_process_is_unavailable(writers):
    """It is no fault within the server, and passes: the model is loaded anew."""
    servicer, asked = writers
    servicer.dead = True
    with pytest.raises(
        ApiError, match="the process that serves the model 'writer' has died"
    ) as told:
        asked(embedded)
    assert told.value.status == 503


@pytest.fixture
def reloaded():
    """A server of an embedding model, and what asks it."""
    yield from asking(Reloaded())


@pytest.fixture
def ensemble():
    """A server of an ensemble of ensembles, and what asks it."""
    yield from asking(Ensemble())


def asking(servicer):
    """Yield a server that runs, and what asks it; stop it then."""
    server, port = started(servicer)

    def asked(work):
        async def ask():
            connection = TritonConnection(f"127.0.0.1:{port}")
            try:
                return await work(connection)
            finally:
                await connection.close()

        return asyncio.run(ask())

    yield servicer, asked
    server.stop(0).wait()


def test_a_model_that_takes_fewer_texts_by_now_is_asked_for_fewer(reloaded):
    """Who asked by what it was before is to ask again, and is told no fault of its own."""
    servicer, asked = reloaded

    async def work(connection):
        before = await connection.model("m", Ability.EMBEDDING)
        servicer.rows = 2
        assert await connection.model("m", Ability.EMBEDDING) == before
        with pytest.raises(ApiError, match="ask again") as told:
            await connection.vectors(before, ([b"a"] * 4,))
        assert told.value.status == 503
        now = await connection.model("m", Ability.EMBEDDING)
        with pytest.raises(ApiError, match="batch-size must be <= 2") as told:
            await connection.vectors(now, ([b"a"] * 4,))
        assert told.value.status == 400
        return now.rows, (await connection.vectors(now, ([b"a"] * 2,))).shape

    assert asked(work) == (2, (2, 2))


def test_a_model_that_is_for_something_else_by_now_is_found(reloaded):
    """Without anybody having asked for the list of models."""
    servicer, asked = reloaded

    async def work(connection):
        await connection.model("m", Ability.EMBEDDING)
        servicer.embeds = False
        return (await connection.model("m", Ability.TEXT)).ability

    assert asked(work) is Ability.TEXT


def test_a_model_that_describes_itself_by_now_is_found(reloaded):
    """Nothing fails that is sent to it as to one of another backend."""
    servicer, asked = reloaded
    servicer.embeds = False

    async def work(connection):
        before = await connection.model("m", Ability.TEXT)
        servicer.own = True
        return before.own, (await connection.model("m", Ability.TEXT)).own

    assert asked(work) == (False, True)


def test_a_model_of_another_backend_by_now_is_found(reloaded):
    """Who asked it as one that describes itself is to ask again, and is told no fault of its own."""
    servicer, asked = reloaded
    servicer.embeds, servicer.own = False, True

    async def work(connection):
        assert (await connection.model("m", Ability.TEXT)).own
        servicer.own = False
        with pytest.raises(OtherDescriptionError):
            await connection.description("m")
        return (await connection.model("m", Ability.TEXT)).own

    assert asked(work) is False


def test_the_step_that_tokenizes_says_how(ensemble):
    """However deep it lies; to who knows it, it says nothing, and it may be away for a while."""
    servicer, asked = ensemble

    async def work(connection):
        servicer.away = True
        before = await connection.model("whole", Ability.EMBEDDING)
        servicer.away = False
        model = await connection.model("whole", Ability.EMBEDDING)
        asks = Describer(name="split", texts=("text",), batched=True)
        assert (before.tokenized, model.tokenized) == (None, asks)
        return [await connection.tokenizer(model, asks, known) for known in ("", "6", "7")]

    assert asked(work) == ["{}", "{}", ""]
