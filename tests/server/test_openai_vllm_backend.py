"""The API in front of a model of Triton's vLLM backend, by a stand-in; see `builders/vllm_backend`."""

import json

import openai
import pytest

from builders.vllm_backend import write_vllm_model
from ge_openai.front import OpenAIFront
from ge_openai.options import FrontOptions

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}<tool_call>{{ tools | tojson }}</tool_call>{% endif %}> "
)
TOKENIZER = {
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
    }
}
LONG = {"model": "writer", "max_tokens": 1000}
HI = [{"role": "user", "content": "hi there"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A folder of a model with adapters, and of one that is distant; and the checkpoint of both."""
    folder = tmp_path_factory.mktemp("models")
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    config = {"chat_template": TEMPLATE, "bos_token": "<s>"}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
    (checkpoint / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    version = write_vllm_model(
        folder, "writer", {"model": str(checkpoint), "enable_lora": "true", "enforce_eager": True}
    )
    (version / "multi_lora.json").write_text(json.dumps({"pirate": "/somewhere/else"}))
    write_vllm_model(folder, "distant", {"model": "nobody/has-this", "gpu_memory_utilization": 0.1})
    return folder, checkpoint


@pytest.fixture(scope="module")
def ask(triton_server, repository):
    """A function that returns a client of the API that is started so."""
    folder, _ = repository
    server, opened = triton_server(folder), []

    def started(**options):
        front = OpenAIFront(FrontOptions(url=server.grpc, port=0, **options))
        opened.append(front.__enter__())
        return openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0, timeout=60)

    yield started
    for front in opened:
        front.__exit__()


@pytest.fixture(scope="module")
def client(ask, repository):
    return ask(tokenizers={"writer": repository[1]})


def said(choice):
    """Return what the model was asked, which is what it writes."""
    return json.loads(choice.text if hasattr(choice, "text") else choice.message.content)


def test_its_models_are_listed(client):
    """Without adapters, of which they say nothing."""
    assert [model.id for model in client.models.list()] == ["distant", "writer"]


def test_a_completion_has_text_reason_and_counts(client):
    """The model is given nothing that it does not know, and the prompt does not come back."""
    answer = client.completions.create(
        prompt="one two three",
        temperature=0.5,
        top_p=0.9,
        stop=["."],
        seed=3,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        extra_body={"top_k": 5, "ignore_eos": True, "use_beam_search": False, "min_p": None},
        **LONG,
    )
    (choice,) = answer.choices
    assert said(choice)["prompt"] == "one two three"
    assert said(choice)["parameters"] == {
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["."],
        "seed": 3,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "top_k": 5,
        "ignore_eos": True,
        "max_tokens": 1000,
    }
    assert choice.finish_reason == "stop"
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == -(-len(choice.text) // 4)


def test_a_stream_is_the_same_in_pieces(client):
    """Each token is an event; the last has the reason, and usage comes behind."""
    usage = {"include_usage": True}
    events = list(
        client.completions.create(
            model="writer", prompt="one two", max_tokens=5, stream=True, stream_options=usage
        )
    )
    *pieces, last = events
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * 4 + ["length"]
    assert "".join(piece.choices[0].text for piece in pieces).startswith('{"prompt": "one')
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 5)


def test_a_chat_goes_through_the_template_of_the_folder_that_is_named(client):
    """Without the token that the model's tokenizer puts in front; as long as the model can hold."""
    answer = client.chat.completions.create(model="writer", messages=HI)
    (choice,) = answer.choices
    assert said(choice)["prompt"] == "user: hi there\n> "
    assert said(choice)["parameters"] == {"max_tokens": 2**20}
    assert choice.finish_reason == "stop"
    pieces = client.chat.completions.create(model="writer", messages=HI, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert json.loads(text)["prompt"] == "user: hi there\n> "
    twice = client.chat.completions.create(
        model="writer", messages=HI, extra_body={"add_special_tokens": True}
    )
    assert said(twice.choices[0])["prompt"].startswith("<s>user")


def test_several_samples_are_several_requests(client):
    """Each with the next seed, as in vLLM; the prompt counts once."""
    answer = client.completions.create(prompt=["a b", "c"], n=2, seed=5, **LONG)
    told = [
        (said(choice)["prompt"], said(choice)["parameters"]["seed"]) for choice in answer.choices
    ]
    assert told == [("a b", 5), ("a b", 6), ("c", 5), ("c", 6)]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert "n" not in said(answer.choices[0])["parameters"]
    assert answer.usage.prompt_tokens == 3


def test_log_probabilities_are_read_without_the_tokens_numbers(client):
    """The drawn token comes first, whatever its rank."""
    answer = client.completions.create(prompt="a", logprobs=2, model="writer", max_tokens=2)
    found = answer.choices[0].logprobs
    assert found.tokens == ['{"pr', "ompt"]
    assert found.token_logprobs == [-0.5, -0.5]
    chat = client.chat.completions.create(
        messages=HI, logprobs=True, top_logprobs=1, model="writer", max_tokens=1
    )
    (token,) = chat.choices[0].logprobs.content
    assert (token.token, [best.token for best in token.top_logprobs]) == ('{"pr', ["x"])


def test_a_schema_is_one_of_vllms_structures(client):
    """As its backend wants it: JSON in JSON. One tool is its arguments' schema."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    answer = client.chat.completions.create(messages=HI, response_format=form, **LONG)
    held = json.loads(said(answer.choices[0])["parameters"]["structured_outputs"])
    assert held["json"]["properties"] == SCHEMA["properties"]
    given = {"guided_regex": "a+"}
    answer = client.completions.create(prompt="a", extra_body=given, **LONG)
    assert json.loads(said(answer.choices[0])["parameters"]["structured_outputs"]) == {
        "regex": "a+"
    }
    chosen = {"type": "function", "function": {"name": "look"}}
    answer = client.chat.completions.create(messages=HI, tools=[TOOL], tool_choice=chosen, **LONG)
    (call,) = answer.choices[0].message.tool_calls
    asked = json.loads(call.function.arguments)
    assert "json" in json.loads(asked["parameters"]["structured_outputs"])
    auto = client.chat.completions.create(messages=HI, tools=[TOOL], **LONG)
    assert "structured_outputs" not in said(auto.choices[0])["parameters"]


def test_an_adapter_is_asked_for_as_a_model(client):
    """One that is not in its list is an unknown model."""
    answer = client.completions.create(prompt="a", **{**LONG, "model": "writer:pirate"})
    assert said(answer.choices[0])["parameters"]["lora_name"] == "pirate"
    for stream in (False, True):
        for name in ("writer:clerk", "distant:clerk"):
            with pytest.raises(openai.NotFoundError, match="LoRA") as error:
                client.completions.create(prompt="a", model=name, stream=stream)
            assert (error.value.param, error.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"prompt": [3, 4]}, "prompt", "takes texts, not tokens"),
        ({"extra_body": {"beam_width": 3}}, "beam_width", "does not take beam_width"),
        ({"logit_bias": {"7": 1}}, "logit_bias", "does not take logit_bias"),
        ({"extra_body": {"add_special_tokens": False}}, "add_special_tokens", "does not take"),
        ({"prompt": "too long"}, None, "maximum context length is 8"),
        ({"extra_body": {"stop_token_ids": [99999]}}, "stop_token_ids", "out-of-vocab"),
        ({"extra_body": {"guided_regex": "a("}}, None, "invalid regex"),
        ({"temperature": -1}, None, "refuses the sampling parameters"),
        ({"max_tokens": 0}, None, "refuses the sampling parameters"),
        ({"stop": [""]}, None, "refuses the sampling parameters"),
        ({"extra_body": {"min_tokens": 40}}, None, "refuses the sampling parameters"),
    ],
)
def test_what_it_cannot_do_is_refused(client, given, param, message, stream):
    """As the request's fault, with its field where it is known."""
    with pytest.raises(openai.BadRequestError, match=message) as error:
        client.completions.create(**{"model": "writer", "prompt": "a", "stream": stream, **given})
    assert error.value.param == param
    long = "too long" in given.get("prompt", ())
    assert (error.value.code == "context_length_exceeded") is long


def test_calls_that_need_a_grammar_are_refused(client):
    """Vllm's compilers read others than this project's."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    for field, given in (("tool_choice", "required"), ("response_format", form)):
        with pytest.raises(openai.BadRequestError, match="one schema alone") as error:
            client.chat.completions.create(
                model="writer", messages=HI, tools=[TOOL], **{field: given}
            )
        assert error.value.param == field


def test_a_template_that_is_not_known_is_named_by_an_option(client, ask, repository):
    """The error says so; without any folder texts are completed all the same."""
    with pytest.raises(openai.BadRequestError, match=r"not known here.*--tokenizer distant="):
        client.chat.completions.create(model="distant", messages=HI)
    assert client.completions.create(model="distant", prompt="a").choices[0].text
    named = ask(tokenizers={"distant": repository[1]})
    answer = named.chat.completions.create(model="distant", messages=HI)
    assert said(answer.choices[0])["prompt"] == "user: hi there\n> "
