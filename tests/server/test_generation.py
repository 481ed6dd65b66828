"""Text from a language model on the real server, against what transformers writes alone."""

import contextlib
import http.client
import itertools
import json
import signal
import time
import urllib.error
import urllib.request

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient
from benchmarks.trust.faults import executors
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from builders.adapters import make_adapter
from builders.graphs import graph, write_model
from builders.language import beams
from builders.metrics import metric
from builders.null_models import comes_true
from builders.pages import ROOT
from builders.standstill import standing_still
from builders.structures import Wanted
from builders.text_stream import GREEDY, TextStream
from builders.writer import PROMPTS, make_writer, write_apprentice
from ge_backend.executor.server.memory import SETTLE_S

TOKENS, LONG = GREEDY["max_tokens"], 1000
LIMIT_MIB = 1024
CONFIG = """backend: "ge"
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters { key: "max_num_batched_tokens" value { string_value: "80" } }
parameters { key: "prefill_chunk" value { string_value: "7" } }
parameters { key: "block_size" value { string_value: "4" } }
parameters { key: "kv_cache_bytes" value { string_value: "4MiB" } }
"""
# Takes what it is asked for, and leaves it with the executor.
GLUTTON = """
input [ { name: "n" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "warmup" value { string_value: "off" } }
"""
FIVE = """parameters { key: "num_speculative_tokens" value { string_value: "5" } }
"""
GUESSERS = {
    "guesser": FIVE
    + """parameters { key: "speculation" value { string_value: "ngram" } }
""",
    "apprentice": FIVE
    + """parameters { key: "speculation" value { string_value: "model" } }
parameters { key: "speculative_model" value { string_value: "draft" } }
""",
}


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A checkpoint in a repository, and transformers' model and tokenizer of it."""
    folder = tmp_path_factory.mktemp("models") / "writer"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    made = make_writer(folder / "1", positions=4096)
    adapters = {"pirate": {}, "poet": {"r": 2, "seed": 2}, "dora": {"use_dora": True}}
    for name, settings in adapters.items():
        made.adapted[name] = make_adapter(folder / "1", name, made.model, **settings)
    for name, settings in GUESSERS.items():
        guesser = folder.parent / name
        guesser.mkdir()
        (guesser / "1").symlink_to(folder / "1")
        (guesser / "config.pbtxt").write_text(CONFIG + settings)
    write_apprentice(made.model, folder.parent / "apprentice" / "draft")
    write_model(folder.parent, "glutton", GLUTTON, glutton())
    return made


def glutton():
    """Return a graph that sums up n ones, having made them all."""
    ones = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        helper.make_node("ConstantOfShape", ["n"], ["ones"], value=ones),
        helper.make_node("ReduceSum", ["ones"], ["y"], keepdims=1),
    ]
    return graph(nodes, [("n", TensorProto.INT64, [1])], [("y", TensorProto.FLOAT, [1])])


@pytest.fixture(scope="module")
def server(triton_server, writer):
    return triton_server(
        writer.folder.parent.parent, environment={"GE_EXECUTOR_MEMORY": f"{LIMIT_MIB}MiB"}
    )


@pytest.fixture
def client(server):
    with grpcclient.InferenceServerClient(server.grpc) as client:
        yield TextStream(client)


def generate(server, path, body, model="writer"):
    request = urllib.request.Request(
        f"http://{server.http}/v2/models/{model}/{path}", json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def executor_of(server):
    """Return the only executor; while one takes another's place there is none, or there are two."""
    found = []

    def is_alone():
        found[:] = executors(server)
        return len(found) == 1

    assert comes_true(is_alone), found
    return psutil.Process(found[0])


def test_texts_of_all_lengths_are_what_transformers_writes(client, writer):
    """Together, in chunks and blocks that fit none of them, each is the text that it is alone."""
    for prompt in PROMPTS:
        client.ask(
            text_input=prompt, exclude_input_in_output=[True], outputs=("text_output", "output_ids")
        )
    responses = client.wait()
    for number, prompt in enumerate(PROMPTS):
        (tensors,) = responses[number]
        ids = writer.truth(prompt, TOKENS)
        assert tensors["output_ids"] == ids
        assert tensors["text_output"] == [writer.text(ids).encode()]


def test_a_stream_is_the_same_text_in_pieces(client, writer):
    """Deltas join to the text; each says how many tokens it brings, the last why it is over."""
    client.ask(
        text_input=PROMPTS[0],
        stream=[True],
        return_num_output_tokens=[True],
        return_finish_reason=[True],
    )
    (responses,) = client.wait().values()
    assert len(responses) > 2
    text = b"".join(tensors["text_output"][0] for tensors in responses)
    assert text == writer.text(writer.truth(PROMPTS[0], TOKENS)).encode()
    assert sum(tensors["num_output_tokens"][0] for tensors in responses) == TOKENS
    reasons = [tensors["finish_reason"] for tensors in responses]
    assert reasons == [[b"None"]] * (len(responses) - 1) + [[b"length"]]


def test_the_generate_endpoints_answer(server, writer):
    """One JSON object without streaming, which begins with the prompt; events with it."""
    body = {"text_input": PROMPTS[1], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    text = writer.text(writer.truth(PROMPTS[1], TOKENS))
    status, answer = generate(server, "generate", body)
    assert (status, json.loads(answer)["text_output"]) == (200, PROMPTS[1] + text)
    status, events = generate(server, "generate_stream", {**body, "stream": True})
    pieces = [json.loads(line[5:])["text_output"] for line in events.splitlines() if line]
    assert (status, "".join(pieces)) == (200, text)
    assert len(pieces) > 2


def test_the_generate_endpoints_take_a_list_as_json_in_a_text(server, writer):
    """Triton itself refuses it as it is; the texts that it says so with stand in the docs."""
    body = {"text_input": PROMPTS[1], "max_tokens": TOKENS, "temperature": 0}
    text = writer.text(writer.truth(PROMPTS[1], TOKENS))
    for given in (
        {"sampling_parameters": json.dumps({"stop": [text[4:6]]})},
        {"stop_token_ids": json.dumps(writer.truth(PROMPTS[1], TOKENS)[2:3])},
    ):
        status, answer = generate(server, "generate", {**body, **given})
        assert status == 200
        assert len(json.loads(answer)["text_output"]) < len(PROMPTS[1] + text)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    for given, code, message in (
        ({"stop": ["a"]}, 400, "has invalid type. It should be either"),
        ({"stop": None}, 400, "has invalid type. It should be either"),
        ({"sampling_parameters": {}}, 500, "Unable to parse JSON bytes array"),
    ):
        status, answer = generate(server, "generate", {**body, **given})
        assert status == code
        assert message in json.loads(answer)["error"]
        assert f"`{message}`" in page


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"best_off": 2}, "sampling parameter 'best_off' is unknown"),
        ({"max_tokens": 100_000}, "shorten the prompt or lower max_tokens"),
        ({"sampling_parameters": "{"}, "sampling_parameters is not JSON"),
        (
            {"guided_json": '{"type": "thing"}'},
            "guided_json cannot be compiled: Invalid type: thing",
        ),
        (
            {"lora_name": "clerk"},
            "lora_name is 'clerk'; the adapters of this model are dora, pirate, poet",
        ),
        ({"lora_name": "dora"}, "adapters/dora/adapter_config.json: use_dora is True"),
    ],
)
def test_what_is_wrong_is_said_to_its_sender(server, client, writer, given, message):
    """An impossible wish is a 400 that names it; a text that is being written goes on."""
    client.ask(text_input=PROMPTS[2], exclude_input_in_output=[True], outputs=("output_ids",))
    status, answer = generate(server, "generate", {"text_input": "a", **given})
    assert status == 400
    assert message in json.loads(answer)["error"]
    ((tensors,),) = client.wait().values()
    assert tensors["output_ids"] == writer.truth(PROMPTS[2], TOKENS)


def test_tokens_may_go_in_and_out(client, writer):
    """A client with a tokenizer of its own needs none of ours."""
    prompt = writer.encode(PROMPTS[3])
    client.ask(input_ids=prompt, outputs=("output_ids",))
    ((tensors,),) = client.wait().values()
    assert tensors["output_ids"] == writer.truth(PROMPTS[3], TOKENS)


def test_samples_and_their_log_probabilities(client):
    """`n` samples are as many elements; a seed gives the same ones again."""
    sampling = {"n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 6, "logprobs": 2}
    asked = {"text_input": PROMPTS[0], "exclude_input_in_output": [True], "sampling": sampling}
    for _ in range(2):
        client.ask(**asked, return_logprobs=[True], return_cumulative_logprob=[True])
    (first,), (second,) = client.wait().values()
    assert first["text_output"] == second["text_output"]
    assert first["cumulative_logprob"] == pytest.approx(second["cumulative_logprob"], abs=1e-4)
    assert len(first["text_output"]) == len(set(first["text_output"])) == 3
    for text, total in zip(first["logprobs"], first["cumulative_logprob"], strict=True):
        tokens = json.loads(text)
        assert len(tokens) <= 6
        assert all(2 <= len(entries) <= 3 for entries in tokens)
        assert all(
            [entry["rank"] for entry in entries.values()][:2] == [1, 2]
            and all(entry["rank"] > 2 for entry in [*entries.values()][2:])
            for entries in tokens
        )
        assert total < 0


OBJECT = {
    "type": "object",
    "properties": {"a": {"enum": [1, "é"]}, "b": {"type": "string", "maxLength": 5}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
STRUCTURES = (
    Wanted("guided_json", OBJECT),
    Wanted("guided_regex", "[0-9]{3}-[A-Z]?"),
    Wanted("guided_choice", ["yes", "no", "I do not know"]),
)


def test_a_form_in_the_words_of_newer_clients_of_vllm(server):
    """An object as text: a request parameter cannot be anything else."""
    body = {"text_input": "a colour: ", "structured_outputs": '{"choice": ["red"]}'}
    status, answer = generate(server, "generate", {**body, "exclude_input_in_output": True})
    assert (status, json.loads(answer)["text_output"]) == (200, "red")


def test_a_beam_search_is_transformers(client, writer):
    """The best texts of one prompt come in one response, streamed or not, also a second time."""
    sampling = {"beam_width": 3, "n": 2, "max_tokens": TOKENS}
    prompt = PROMPTS[2]
    for stream in (False, True):
        client.ask(
            text_input=prompt,
            sampling=sampling,
            stream=[stream],
            exclude_input_in_output=[True],
            outputs=("text_output", "num_output_tokens"),
            return_num_output_tokens=[True],
        )
    best = beams(
        writer.model,
        writer.encode(prompt),
        TOKENS,
        eos_token_id=0,
        num_beams=3,
        num_return_sequences=2,
    )
    texts = [writer.text([token for token in ids if token]).encode() for ids in best]
    for responses in client.wait().values():
        assert [tensors["text_output"] for tensors in responses] == [texts]
        assert responses[0]["num_output_tokens"] == [len(ids) for ids in best]


def test_every_answer_keeps_to_its_structure(client):
    """Whatever a model of random weights would rather say, greedily and by chance, in one batch."""
    for wanted in STRUCTURES:
        for sampling in ({"temperature": 0}, {"seed": 3, "n": 2}):
            client.ask(
                text_input=PROMPTS[0],
                exclude_input_in_output=[True],
                return_finish_reason=[True],
                sampling={**sampling, wanted.name: wanted.value, "max_tokens": 100},
            )
    responses = client.wait()
    for number, wanted in enumerate(wanted for wanted in STRUCTURES for _ in range(2)):
        (tensors,) = responses[number]
        assert set(tensors["finish_reason"]) == {b"stop"}
        assert all(wanted.keeps(text.decode()) for text in tensors["text_output"])


def test_each_text_has_the_adapter_that_it_names(server, client, writer):
    """Two adapters and none in one batch, on models that share the folder, of which two guess."""
    wanted = [(p, name) for p in PROMPTS for name in (None, "pirate", "poet")]
    models = ("writer", *GUESSERS)
    for model in models:
        for prompt, name in wanted:
            client.ask(
                model=model,
                text_input=prompt,
                sampling={**GREEDY, **({"lora_name": name} if name else {})},
                outputs=("output_ids",),
            )
    responses = client.wait()
    for number, (prompt, name) in enumerate(len(models) * wanted):
        (tensors,) = responses[number]
        assert tensors["output_ids"] == writer.truth(prompt, TOKENS, name)
    texts = {tuple(responses[number][0]["output_ids"]) for number in range(3)}
    assert len(texts) == 3
    for model in models:
        assert comes_true(lambda m=model: metric(server, "ge_text_adapters", model=m) == 2)
        assert comes_true(
            lambda m=model: metric(server, "ge_text_adapter_loads_total", model=m) >= 2
        )
        assert comes_true(lambda m=model: metric(server, "ge_text_adapted_steps_total", model=m))


def test_a_stop_text_ends_and_is_cut_off(server, client, writer):
    """What comes before it is all of the answer."""
    whole = writer.text(writer.truth(PROMPTS[0], TOKENS))
    stop = whole[5:8]
    before = [metric(server, "ge_text_finished_total", reason=r) for r in ("stop", "cancelled")]
    client.ask(
        text_input=PROMPTS[0],
        exclude_input_in_output=[True],
        return_finish_reason=[True],
        sampling={**GREEDY, "stop": [stop]},
    )
    ((tensors,),) = client.wait().values()
    assert tensors["text_output"] == [whole[: whole.index(stop)].encode()]
    assert tensors["finish_reason"] == [b"stop"]
    stopped, cancelled = before
    assert comes_true(lambda: metric(server, "ge_text_finished_total", reason="stop") > stopped)
    assert metric(server, "ge_text_finished_total", reason="cancelled") == cancelled


@pytest.mark.parametrize(
    "asked",
    [
        {"guided_regex": "(abc ){20}", "temperature": 0, "max_tokens": 90},
        {"guided_regex": "(abc ){20}", "seed": 3, "max_tokens": 31},
        {"guided_regex": "(a{3,9}b )+", "seed": 4, "max_tokens": 60, "stop": "b a"},
        {"temperature": 0.2, "seed": 5, "max_tokens": 60, "frequency_penalty": 0.5},
    ],
)
def test_guessed_and_verified_texts_are_the_same(server, asked):
    """With speculation and without: structures, seeds, stop texts and limits within a run."""
    body = {"text_input": PROMPTS[4], "return_finish_reason": True, **asked}
    expected = json.loads(generate(server, "generate", body)[1])
    assert expected["text_output"]
    for model, more in itertools.product(GUESSERS, ({}, {"speculation": False})):
        status, answer = generate(server, "generate", {**body, **more}, model)
        assert (status, {**json.loads(answer), "model_name": "writer"}) == (200, expected)


@pytest.mark.parametrize("guesser", GUESSERS)
def test_guesses_are_counted(server, guesser):
    """How many were verified and right, and what a text got in a step; none for other models."""
    body = {"text_input": "a", "guided_regex": "(abc ){20}", "max_tokens": 90}
    for model in ("writer", guesser):
        assert generate(server, "generate", body, model)[0] == 200

    def counted(name, model=guesser):
        return metric(server, f"ge_text_{name}", model=model)

    assert comes_true(lambda: counted("accepted_tokens_total") > 40)
    assert comes_true(lambda: counted("accepted_tokens_total") <= counted("drafted_tokens_total"))
    assert comes_true(lambda: counted("run_tokens_sum") > counted("accepted_tokens_total"))
    assert comes_true(lambda: counted("drafting_seconds_sum") > 0)
    assert comes_true(lambda: counted("generated_tokens_total", "writer") > 0)
    assert counted("drafted_tokens_total", "writer") == 0


def test_a_client_that_goes_frees_everything(server, client):
    """A cancelled stream and a closed connection leave no block in use."""
    before = metric(server, "ge_text_finished_total", reason="cancelled")
    # So long that no client is so slow that it could see the end of it.
    long = {"max_tokens": 4000, "temperature": 0, "ignore_eos": True}
    client.ask(text_input="a", stream=[True], sampling=long)
    client.next()
    client.client.stop_stream(cancel_requests=True)
    host, port = server.http.split(":")
    connection = http.client.HTTPConnection(host, int(port))
    body = json.dumps({"text_input": "a", "stream": True, **long})
    connection.request("POST", "/v2/models/writer/generate_stream", body)
    connection.getresponse().read(1)
    connection.close()  # also what the response has of the socket
    assert comes_true(
        lambda: (
            metric(server, "ge_text_finished_total", reason="cancelled") >= before + 2
            and metric(server, "ge_text_blocks_used") == 0
        ),
        seconds=20,
    )


def test_streams_go_on_after_an_executors_death(server, client, writer):
    """No token is lost, none comes twice, and the text is what it would have been.

    So with structures and amid guesses; beams begin again.
    """
    long = {"max_tokens": 100, "temperature": 0, "ignore_eos": True}
    held = {"max_tokens": 100, "seed": 7, "guided_regex": "[a-z]{90}[0-9]*"}
    adapted = {**long, "lora_name": "pirate"}
    begun_again = [{"beam_width": 3, "n": 2, "max_tokens": 100}]
    whole = [
        client.ask(text_input="a", sampling=sampling, outputs=("output_ids",))
        for sampling in (held, *begun_again)
    ]
    answers = client.wait()
    whole = [answers[number] for number in whole]
    asked, seen, ended = {}, {}, 0

    def ask_for_a_stream(prompt, sampling, model="writer"):
        number = client.ask(
            model=model,
            text_input=prompt,
            stream=[True],
            sampling=sampling,
            outputs=("output_ids",),
        )
        asked[number], seen[number] = (prompt, sampling), []

    def take_until_all_have(count):
        nonlocal ended
        while min(len(seen[number]) for number in asked) < count:
            number, tensors, final = client.next()
            seen[number] += tensors.get("output_ids", [])
            ended += final

    with standing_still(server):
        for model in ("writer", *GUESSERS):
            for prompt, sampling in [*((p, long) for p in PROMPTS), ("a", held), ("a", adapted)]:
                ask_for_a_stream(prompt, sampling, model)
    take_until_all_have(3)
    # Only now: a model that was slow to begin would find them done.
    with standing_still(server):
        at_once = [
            client.ask(text_input="a", sampling=sampling, outputs=("output_ids",))
            for sampling in begun_again
        ]
        seen |= {number: [] for number in at_once}
        ask_for_a_stream(PROMPTS[0], long)
    take_until_all_have(1)
    assert not any(seen[number] for number in at_once)
    restarts = metric(server, "ge_executor_restarts_total")
    executor_of(server).kill()
    left = len(seen) - ended
    while left:
        number, tensors, final = client.next()
        seen[number] += tensors.get("output_ids", [])
        left -= final
    truth = {prompt: writer.truth(prompt, 100) for prompt in PROMPTS}
    ((of_structure,), *of_several) = whole
    for number, (prompt, sampling) in asked.items():
        expected = of_structure["output_ids"] if sampling is held else truth[prompt]
        if sampling is adapted:
            expected = writer.truth(prompt, 100, "pirate")
        assert seen[number] == expected
    assert [seen[number] for number in at_once] == [one["output_ids"] for (one,) in of_several]
    assert comes_true(lambda: metric(server, "ge_executor_restarts_total") > restarts)


def test_streams_go_on_after_the_checkpoint_was_replaced_by_garbage(server, client, writer):
    """What was loaded is loaded again from a copy: both models, and requests that come later."""
    long = {"max_tokens": 100, "temperature": 0, "ignore_eos": True}
    asked = {"sampling": long, "stream": [True], "outputs": ("output_ids",)}
    good = {path: path.read_bytes() for path in writer.folder.iterdir() if path.is_file()}
    seen = {client.ask(text_input=PROMPTS[0], model=m, **asked): [] for m in ("writer", "guesser")}
    left = len(seen)
    while min(map(len, seen.values())) < 3:
        number, tensors, final = client.next()
        seen[number] += tensors.get("output_ids", [])
        left -= final
    for path in good:
        path.write_bytes(b"garbage")
    try:
        for pid in executors(server):
            with contextlib.suppress(psutil.NoSuchProcess):  # weights are mapped: it died of this
                psutil.Process(pid).kill()
        while left:
            number, tensors, final = client.next()
            seen[number] += tensors.get("output_ids", [])
            left -= final
        assert list(seen.values()) == [writer.truth(PROMPTS[0], 100)] * 2
        status, answer = generate(server, "generate", {"text_input": PROMPTS[1], **GREEDY})
        text = writer.text(writer.truth(PROMPTS[1], TOKENS))
        assert (status, json.loads(answer)["text_output"]) == (200, PROMPTS[1] + text)
    finally:
        for path, content in good.items():
            path.write_bytes(content)


def ask_for_ones(server, count):
    """Have so many numbers made, of four bytes each."""
    given = grpcclient.InferInput("n", [1], "INT64")
    given.set_data_from_numpy(np.array([count]))
    with grpcclient.InferenceServerClient(server.grpc) as client:
        assert client.infer("glutton", [given]).as_numpy("y") > 0


def test_an_executor_that_grows_is_replaced_and_streams_go_on(server, client, writer):
    """At the limit of its memory, whoever made it grow; no token is lost, none comes twice."""
    for model in ("writer", *GUESSERS):  # one that was lost would be loaded again later
        assert generate(server, "generate", {"text_input": "a", **GREEDY}, model)[0] == 200
    ask_for_ones(server, 1)
    time.sleep(SETTLE_S + 2)  # what it has now is what it needs
    executor = executor_of(server)
    client.ask(
        text_input=PROMPTS[0],
        stream=[True],
        sampling={"max_tokens": LONG, "temperature": 0, "ignore_eos": True},
        outputs=("output_ids",),
    )
    ask_for_ones(server, LIMIT_MIB << 18)
    (responses,) = client.wait().values()
    ids = [token for tensors in responses for token in tensors["output_ids"]]
    assert ids == writer.truth(PROMPTS[0], LONG)
    assert comes_true(lambda: executor_of(server).pid != executor.pid)


def test_a_time_limit_is_kept_while_the_executor_is_stopped(server, client, writer):
    """The error comes soon after it, and not when another executor can go on with the text."""
    executor = executor_of(server)
    ended, told = [], []

    def ask(tokens, timeout_us=None):
        return client.ask(
            text_input=PROMPTS[0],
            stream=[True],
            sampling={"max_tokens": tokens, "temperature": 0, "ignore_eos": True},
            outputs=("output_ids",),
            timeout_us=timeout_us,
        )

    def take_until(enough):
        while not enough():
            try:
                number, tensors, final = client.next()
            except InferenceServerException as error:
                told.append(error.message())
                ended.append(limited)
            else:
                seen[number] += tensors.get("output_ids", [])
                ended.extend([number] if final else [])

    patient = ask(LONG)
    seen = {patient: []}
    take_until(lambda: seen[patient])  # it may have to be loaded, which takes longer than the limit
    limited = ask(4000, 2_500_000)
    seen[limited] = []
    take_until(lambda: seen[limited] or ended)
    executor.send_signal(signal.SIGSTOP)
    take_until(lambda: len(ended) == len(seen))
    assert ended == [limited, patient]
    assert "not done within its 2.5 s; allow it more" in told[0]
    assert seen[patient] == writer.truth(PROMPTS[0], LONG)


def test_unary_calls_are_refused_by_the_host(server):
    """The model is decoupled: a plain call cannot have several responses."""
    with grpcclient.InferenceServerClient(server.grpc) as client:
        given = grpcclient.InferInput("text_input", [1], "BYTES")
        given.set_data_from_numpy(np.array([b"a"], object))
        with pytest.raises(InferenceServerException, match="decoupled"):
            client.infer("writer", [given])


def test_what_happened_is_in_the_metrics(server):
    """Tokens, times and blocks are counted once, although two instances serve the model."""

    def tokens():
        return metric(server, "ge_text_generated_tokens_total")

    def counted():
        expected = tokens() + TOKENS
        generate(server, "generate", {"text_input": PROMPTS[0], **GREEDY})
        if not comes_true(lambda: tokens() == expected, 10):
            return False
        time.sleep(0.6)
        return tokens() == expected

    assert counted() or counted()  # what other tests asked for may be counted during the first
    assert comes_true(lambda: metric(server, "ge_text_first_token_seconds_count") > 0)
    assert comes_true(lambda: metric(server, "ge_text_inter_token_seconds_sum") > 0)
    assert metric(server, "ge_text_blocks_free") > 0
    assert metric(server, "ge_executor_memory_bytes", device="cpu") > 50 << 20
