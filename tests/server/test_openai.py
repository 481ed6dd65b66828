"""OpenAI's API by OpenAI's own client, in front of the real server."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import openai
import psutil
import pydantic
import pytest
import tokenizers
import tritonclient.grpc as grpcclient
from benchmarks.trust.faults import executors
from docs.driven_browser import find_browser, opened_browser

from builders.adapters import make_adapter
from builders.browser import CONTRAST
from builders.metrics import metric
from builders.null_models import comes_true
from builders.pages import blocks
from builders.writer import PROMPTS, make_writer
from ge_backend.executor.process.host_processes import stubs_of
from ge_openai import triton
from ge_openai.front import OpenAIFront
from ge_openai.options import FrontOptions

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 16
# What every HttpClient of a JDK sends beside a request over plain HTTP.
OFFERS_HTTP_2 = {
    "Connection": "Upgrade, HTTP2-Settings",
    "Upgrade": "h2c",
    "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
}
MODELS = (
    *("text_embedding", "tokenizer", "text_encoder", "pooling"),
    *("text_ranker", "pair_tokenizer", "ranker_head"),
)
CONFIG = """backend: "ge"
instance_group [ { kind: KIND_CPU } ]
parameters { key: "block_size" value { string_value: "4" } }
parameters { key: "kv_cache_bytes" value { string_value: "4MiB" } }
"""
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}> {% endif %}"
)
GREEDY = {"model": "writer", "max_tokens": TOKENS, "temperature": 0}
EXACT = {"extra_body": {"ignore_eos": True}}
KEY = "a key of theirs"
# For text, by the Web Content Accessibility Guidelines, level AA.
MIN_CONTRAST = 4.5
LEAST = f"""(() => {{
{CONTRAST}
const nodes = [...document.querySelectorAll("h1, p, label, button, .said, select, input, textarea")];
const seen = nodes.filter((node) => node.offsetParent && !node.disabled);
return Math.min(...seen.map((node) => ratio(getComputedStyle(node).color, behind(node))));
}})()"""

STOPPED_EARLY = """new MutationObserver((_, observer) => {
  if ($("talk").lastChild.textContent.length <= 3) return;
  observer.disconnect();
  $("stop").click();
}).observe($("talk"), { childList: true, characterData: true, subtree: true }); 1"""


@pytest.fixture(scope="module")
def writer(tmp_path_factory, made_models):
    """A checkpoint with a chat template beside an embedding ensemble; its model and tokenizer."""
    repository = tmp_path_factory.mktemp("models")
    for name in MODELS:
        (repository / name).symlink_to(made_models / name)
    folder = repository / "writer"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    made = make_writer(folder / "1")
    made.adapted["pirate"] = make_adapter(folder / "1", "pirate", made.model)
    (folder / "1" / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return made


@pytest.fixture(scope="module")
def server(triton_server, writer):
    control = ("--model-control-mode=explicit", "--load-model=*")
    return triton_server(writer.folder.parent.parent, arguments=control)


@pytest.fixture(scope="module")
def front(server, writer):
    """The API in front of the server, with a key and small limits."""
    options = FrontOptions(
        url=server.grpc,
        metrics=server.metrics,
        port=0,
        keys=("another", KEY),
        max_body_bytes=20_000,
        max_prompt_bytes=4_000,
    )
    with OpenAIFront(options) as front:
        yield front


@pytest.fixture(scope="module")
def client(front):
    with openai.OpenAI(
        base_url=f"{front.url}/v1", api_key=KEY, max_retries=0, timeout=60
    ) as client:
        yield client


def test_the_models_are_listed(client):
    """Those that can be asked, by the names that the server knows, adapters behind their model."""
    listed = {model.id: model for model in client.models.list()}
    assert list(listed) == ["text_embedding", "text_ranker", "writer", "writer:pirate"]
    assert listed["writer:pirate"].parent == "writer"
    assert client.models.retrieve("writer").object == "model"
    assert client.models.retrieve("writer:pirate").ability == "text"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("reader")


def test_a_model_whose_folder_is_away_is_listed(client, writer, made_models):
    """It is served all the same."""
    link = writer.folder.parent.parent / "text_embedding"
    link.unlink()
    try:
        assert "text_embedding" in [model.id for model in client.models.list()]
    finally:
        link.symlink_to(made_models / "text_embedding")


def test_a_completion_is_what_transformers_writes(client, writer):
    """Text, end and tokens of a prompt, as text and as tokens."""
    ids = writer.truth(PROMPTS[0], TOKENS)
    for prompt in (PROMPTS[0], writer.encode(PROMPTS[0])):
        answer = client.completions.create(prompt=prompt, **GREEDY, **EXACT)
        (choice,) = answer.choices
        assert (choice.text, choice.finish_reason) == (writer.text(ids), "length")
        assert answer.object == "text_completion"
        assert answer.usage.prompt_tokens == len(writer.encode(PROMPTS[0]))
        assert answer.usage.completion_tokens == TOKENS
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + TOKENS


def test_an_adapter_is_asked_as_a_model(client, writer):
    """By its model's name and its own, or by `lora_name`; the answer names what was asked."""
    text = writer.text(writer.truth(PROMPTS[0], TOKENS, "pirate"))
    assert text != writer.text(writer.truth(PROMPTS[0], TOKENS))
    named = {**GREEDY, "model": "writer:pirate"}
    answer = client.completions.create(prompt=PROMPTS[0], **named, **EXACT)
    assert (answer.choices[0].text, answer.model) == (text, "writer:pirate")
    by_field = {"extra_body": {"ignore_eos": True, "lora_name": "pirate"}}
    assert (
        client.completions.create(prompt=PROMPTS[0], **GREEDY, **by_field).choices[0].text == text
    )
    messages = [{"role": "user", "content": "hello"}]
    said = client.chat.completions.create(messages=messages, **named, **EXACT)
    truth = writer.truth(chat_prompt(*messages), TOKENS, "pirate")
    assert said.choices[0].message.content == writer.text(truth)
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError, match="this model are pirate") as error:
            client.completions.create(
                prompt="a", stream=stream, **{**GREEDY, "model": "writer:clerk"}
            )
        assert (error.value.param, error.value.code) == ("model", "model_not_found")
    for name in ("reader:pirate", "text_embedding:pirate", "writer:"):
        with pytest.raises(openai.NotFoundError, match=f"'{name}' does not exist here"):
            client.completions.create(prompt="a", **{**GREEDY, "model": name})


def test_several_prompts_in_one_request(client, writer):
    """Each has its choice, in order, whole and as a stream."""
    texts = [writer.text(writer.truth(prompt, TOKENS)) for prompt in PROMPTS]
    answer = client.completions.create(prompt=list(PROMPTS), **GREEDY, **EXACT)
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == list(range(len(PROMPTS)))
    assert answer.usage.completion_tokens == TOKENS * len(PROMPTS)
    assert answer.usage.prompt_tokens == sum(len(writer.encode(prompt)) for prompt in PROMPTS)
    streamed = [""] * len(PROMPTS)
    for event in client.completions.create(prompt=list(PROMPTS), stream=True, **GREEDY, **EXACT):
        for choice in event.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts


def test_a_streamed_completion_comes_in_pieces(client, writer):
    """Pieces join to the text; the last has the reason, and usage comes behind if asked for."""
    events = list(
        client.completions.create(
            prompt=PROMPTS[0],
            stream=True,
            stream_options={"include_usage": True},
            **GREEDY,
            **EXACT,
        )
    )
    *pieces, last = events
    assert len(pieces) > 3
    text = "".join(piece.choices[0].text for piece in pieces)
    assert text == writer.text(writer.truth(PROMPTS[0], TOKENS))
    reasons = [piece.choices[0].finish_reason for piece in pieces]
    assert reasons == [None] * (len(pieces) - 1) + ["length"]
    assert (last.choices, last.usage.completion_tokens) == ([], TOKENS)
    assert {piece.usage for piece in pieces} == {None}
    assert len({event.id for event in events}) == 1


def test_the_readmes_lines_chat(front, capsys):
    """They print the answer; only the address and the key are another."""
    (lines,) = (block.text for block in blocks("README.md") if "openai.OpenAI(" in block.text)
    lines = lines.replace("http://localhost:9000", front.url).replace('"none"', repr(KEY))
    exec(lines, {"openai": openai})
    assert capsys.readouterr().out.strip()


def chat_prompt(*messages, tools=""):
    lines = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
    return f"{lines}{tools}> "


def test_a_chat_goes_through_the_checkpoints_template(client, writer):
    """What the model reads is what its template makes of the messages; roles come back."""
    messages = [
        {"role": "system", "content": "be short"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "good"}, {"type": "text", "text": "day"}],
        },
    ]
    prompt = chat_prompt(messages[0], {"role": "user", "content": "good\nday"})
    text = writer.text(writer.truth(prompt, TOKENS))
    answer = client.chat.completions.create(messages=messages, **GREEDY, **EXACT)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", text)
    assert answer.usage.prompt_tokens == len(writer.encode(prompt))
    first, *rest = client.chat.completions.create(messages=messages, stream=True, **GREEDY, **EXACT)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(event.choices[0].delta.content or "" for event in rest) == text
    assert rest[-1].choices[0].finish_reason == "length"


def test_tools_are_for_the_template(client, writer):
    """It sees them unless the client wants none."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]
    ask = {"messages": messages, "tools": tools, **GREEDY, **EXACT}
    for choice, shown in (("auto", json.dumps(tools)), ("none", "")):
        answer = client.chat.completions.create(tool_choice=choice, **ask)
        truth = writer.truth(chat_prompt(*messages, tools=shown), TOKENS)
        assert answer.choices[0].message.content == writer.text(truth)


class Item(pydantic.BaseModel):
    name: Literal["a", "é"]
    count: Annotated[int, pydantic.Field(ge=0, le=9)]


SHORT = {"model": "writer", "max_tokens": 120, "temperature": 0}


def test_an_answer_is_in_the_format_that_was_asked_for(client):
    """A schema, by the client's own parsing of it; any object; and one of some texts."""
    ask = {"messages": [{"role": "user", "content": "a"}], **SHORT}
    parsed = client.chat.completions.parse(response_format=Item, **ask)
    assert isinstance(parsed.choices[0].message.parsed, Item)
    choice = client.chat.completions.create(**ask, extra_body={"guided_choice": ["yes", "no"]})
    assert choice.choices[0].message.content in {"yes", "no"}
    free = client.chat.completions.create(
        **{**ask, "max_tokens": 9}, response_format={"type": "json_object"}
    )
    assert free.choices[0].message.content.startswith("{")


TOOLS = [  # so short that prompt and answer fit into the tiny model
    {"type": "function", "function": {"name": "f", "parameters": {"enum": [{"a": 1}, {"a": 2}]}}},
    {"type": "function", "function": {"name": "g", "parameters": {"const": {}}}},
]


def calls_of(answer):
    """Return names and arguments, content and end of a whole answer or a stream."""
    if not isinstance(answer, openai.Stream):
        (choice,) = answer.choices
        found = choice.message.tool_calls or []
        text = choice.message.content
        return [(c.function.name, c.function.arguments) for c in found], text, choice.finish_reason
    found, text, finish = {}, "", None
    for event in answer:
        (choice,) = event.choices
        text += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for call in choice.delta.tool_calls or []:
            assert call.id.isalnum()
            found[call.index] = (call.function.name, call.function.arguments)
    return [found[number] for number in sorted(found)], text or None, finish


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools(client, stream):
    """Read out of what the model writes, or forced: any of them, or one."""
    messages = [{"role": "user", "content": "a"}]
    ask = {"messages": messages, "tools": TOOLS, "stream": stream, **SHORT, "max_tokens": 70}
    written = 'so <tool_call>{"name": "f", "arguments": {"a": 2}}</tool_call>'
    answer = client.chat.completions.create(**ask, extra_body={"guided_choice": [written]})
    assert calls_of(answer) == ([("f", '{"a": 2}')], "so", "tool_calls")
    for choice, end in (
        ("required", "tool_calls"),
        ({"type": "function", "function": {"name": "f"}}, "stop"),
    ):
        (call,), text, finish = calls_of(
            client.chat.completions.create(**ask, tool_choice=choice, parallel_tool_calls=False)
        )
        assert (text, finish) == (None, end)
        name, arguments = call
        assert (name, json.loads(arguments)) in [("f", {"a": 1}), ("f", {"a": 2}), ("g", {})]
        assert choice == "required" or name == "f"


FORMAT = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"enum": [{"t": 1}]}}}


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_a_format_go_together(client, writer, stream):
    """The model calls or answers in the format; a tool that has to be called goes before it."""
    messages = [{"role": "user", "content": "a"}]
    ask = {"messages": messages, "tools": TOOLS[1:], "stream": stream, **SHORT, "max_tokens": 100}
    ask |= {"response_format": FORMAT, "parallel_tool_calls": False}
    for letter in "<{":  # with which a call or the format begins
        (token,) = writer.encode(letter)
        bias = {str(token): 100}
        found, text, _ = calls_of(client.chat.completions.create(**ask, logit_bias=bias))
        assert bool(found) is (letter == "<")
        assert found or json.loads(text) == {"t": 1}
    named = {"type": "function", "function": {"name": "g"}}
    for choice in ("required", named):
        (call,), text, _ = calls_of(client.chat.completions.create(**ask, tool_choice=choice))
        assert text is None
        assert (call[0], json.loads(call[1])) == ("g", {})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "g"}}])
def test_a_streamed_call_is_told_to_be_done(client, choice):
    """By the client's own helper, before the end."""
    ask = {"messages": [{"role": "user", "content": "a"}], **SHORT, "max_tokens": 90}
    tool = {"type": "function", "function": {"name": "g"}}
    with client.chat.completions.stream(
        **ask, tools=[tool], tool_choice=choice, parallel_tool_calls=False
    ) as events:
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, json.loads(event.arguments)) for event in done] == [("g", {})]


def test_a_strict_schema_is_refused_by_the_fields_name(client):
    """One that is not strict is kept to as far as it can be."""
    path = {"type": "string", "maxLength": 2, "format": "path"}
    schema = {"type": "object", "properties": {"p": path}, "required": ["p"]}
    described = {"name": "s", "schema": {**schema, "additionalProperties": False}}
    ask = {"messages": [{"role": "user", "content": "a"}], **SHORT}
    answer = client.chat.completions.create(
        **ask, response_format={"type": "json_schema", "json_schema": described}
    )
    assert len(json.loads(answer.choices[0].message.content)["p"]) <= 2
    strict = {"type": "function", "function": {"name": "h", "parameters": schema, "strict": True}}
    form = {"type": "json_schema", "json_schema": {**described, "strict": True}}
    for given, field in (
        ({"response_format": form}, "response_format.json_schema.schema"),
        ({"tools": [*TOOLS, strict], "tool_choice": "required"}, "tools[2].function.parameters"),
    ):
        with pytest.raises(openai.BadRequestError, match="Unknown format: path") as told:
            client.chat.completions.create(**ask, **given)
        assert told.value.param == field
        assert f"{field} cannot be compiled: Unknown format: path" in told.value.message


def test_a_call_and_its_result_go_on_with_the_chat(client, writer):
    """What a client got as a call it may send back; the template shows it to the model."""
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "7"},
    ]
    answer = client.chat.completions.create(messages=messages, **GREEDY, **EXACT)
    shown = 'assistant: \n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>tool: 7\n> '
    assert answer.choices[0].message.content == writer.text(writer.truth(shown, TOKENS))


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_ends_and_is_cut_off(client, writer, stream):
    """Nothing of it is sent, although it comes in several tokens."""
    whole = writer.text(writer.truth(PROMPTS[0], TOKENS))
    stop = whole[5:8]
    answer = client.completions.create(
        prompt=PROMPTS[0], stop=[stop], stream=stream, **GREEDY, **EXACT
    )
    choices = [event.choices[0] for event in (answer if stream else [answer])]
    assert "".join(choice.text for choice in choices) == whole[: whole.index(stop)]
    assert choices[-1].finish_reason == "stop"


def test_samples_of_a_seed(client):
    """`n` samples are as many choices; the same seed gives the same, streamed or not."""
    ask = {
        "prompt": PROMPTS[0],
        "model": "writer",
        "n": 3,
        "seed": 5,
        "max_tokens": 8,
        "temperature": 1,
    }
    first = [choice.text for choice in client.completions.create(**ask).choices]
    streamed, reasons = [""] * 3, []
    for event in client.completions.create(stream=True, **ask):
        for choice in event.choices:
            streamed[choice.index] += choice.text
            reasons += [choice.index] * (choice.finish_reason is not None)
    assert streamed == first
    assert len(set(first)) == 3
    assert sorted(reasons) == [0, 1, 2]


def test_log_probabilities_in_both_forms(client):
    """Of each drawn token and of the best ones; the greedy token is the best."""
    answer = client.completions.create(prompt=PROMPTS[0], logprobs=2, **GREEDY, **EXACT)
    found = answer.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.text_offset) == TOKENS
    assert all(
        max(top.values()) == own
        for top, own in zip(found.top_logprobs, found.token_logprobs, strict=True)
    )
    chat = {"messages": [{"role": "user", "content": "a"}], **GREEDY, **EXACT}
    tokens = []
    for event in client.chat.completions.create(logprobs=True, top_logprobs=3, stream=True, **chat):
        if event.choices[0].logprobs:
            tokens += event.choices[0].logprobs.content
    assert len(tokens) == TOKENS
    assert all(len(token.top_logprobs) == 3 for token in tokens)
    assert all(token.top_logprobs[0].logprob == token.logprob < 0 for token in tokens)
    alone = client.chat.completions.create(logprobs=True, **chat).choices[0].logprobs.content
    assert [token.logprob for token in alone] == pytest.approx(
        [t.logprob for t in tokens], abs=1e-4
    )
    assert not any(token.top_logprobs for token in alone)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"model": "reader"}, openai.NotFoundError, "'reader' does not exist here"),
        ({"top_p": 1.5}, openai.BadRequestError, "top_p is 1.5"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "lower max_tokens"),
        ({"extra_body": {"best_off": 2}}, openai.BadRequestError, "best_off is not known"),
        (
            {"extra_body": {"guided_json": {"not": {}}}},
            openai.BadRequestError,
            'guided_json cannot be compiled: Unimplemented keys: ["not"]',
        ),
        ({"echo": True}, openai.BadRequestError, "echo is not supported"),
        ({"prompt": "a" * 5_000}, openai.BadRequestError, "5000 bytes, at most 4000"),
        ({"prompt": "a" * 50_000}, openai.APIStatusError, "more than 20000 bytes"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_said_with_the_right_status(client, given, error, message, stream):
    """A refusal is a status of its own, also where a stream was asked for."""
    with pytest.raises(error, match=re.escape(message)) as caught:
        client.completions.create(**{"prompt": "a", **GREEDY, "stream": stream, **given})
    assert caught.value.type == "invalid_request_error"
    named = {*given, *given.get("extra_body", ())} & {message.partition(" ")[0]}
    assert {caught.value.param or ""} >= named
    too_long = message == "lower max_tokens"
    assert (caught.value.code == "context_length_exceeded") is too_long
    assert ("maximum context length is" in str(caught.value)) is too_long


def test_fields_that_clients_send_anyway(client):
    """At their defaults, and as guidance that a template need not know; greedy samples are equal."""
    messages = [{"role": "user", "content": [{"type": "text", "text": PROMPTS[0]}]}]
    plain = client.chat.completions.create(messages=messages, **GREEDY, **EXACT)
    extra = {
        **EXACT["extra_body"],
        "chat_template_kwargs": {"enable_thinking": False},
        "continue_final_message": False,
        "include_stop_str_in_output": False,
        "use_beam_search": False,
        "prompt_logprobs": 0,
        "truncate_prompt_tokens": None,
        "length_penalty": 1.0,
        "best_of": None,
    }
    answer = client.chat.completions.create(
        messages=messages,
        n=2,
        reasoning_effort="low",
        verbosity="low",
        logit_bias={},
        prompt_cache_key="k",
        **GREEDY,
        extra_body=extra,
    )
    expected = plain.choices[0].message.content
    assert [choice.message.content for choice in answer.choices] == [expected] * 2


def test_an_answer_goes_on_within_the_last_message(client, writer):
    """The prompt ends with it, so the text is what the model writes behind."""
    begun = {"role": "assistant", "content": "once upon"}
    answer = client.chat.completions.create(
        messages=[{"role": "user", "content": "a"}, begun],
        **GREEDY,
        extra_body={**EXACT["extra_body"], "continue_final_message": True},
    )
    ids = writer.truth("user: a\nassistant: once upon", TOKENS)
    assert answer.choices[0].message.content == writer.text(ids)


def test_usage_so_far_is_told_with_each_event(client):
    """As vLLM's `continuous_usage_stats`; OpenAI's `include_obfuscation` is taken."""
    options = {
        "include_usage": True,
        "continuous_usage_stats": True,
        "include_obfuscation": False,
    }
    events = list(
        client.completions.create(
            prompt=PROMPTS[0], stream=True, stream_options=options, **GREEDY, **EXACT
        )
    )
    counts = [each.usage.completion_tokens for each in events]
    assert counts == sorted(counts)
    assert counts[-1] == TOKENS
    assert all(each.usage.prompt_tokens == events[0].usage.prompt_tokens for each in events)


def test_a_stop_text_may_be_left_in_the_answer(client, writer):
    """VLLM's `include_stop_str_in_output`."""
    text = writer.text(writer.truth(PROMPTS[0], TOKENS))
    stop = text[3:5]
    wanted = text[: text.index(stop) + len(stop)]
    extra = {**EXACT["extra_body"], "include_stop_str_in_output": True}
    answer = client.completions.create(prompt=PROMPTS[0], stop=[stop], **GREEDY, extra_body=extra)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (wanted, "stop")


def test_vllm_backends_clients_may_spell_defaults_out(server):
    """Triton's `/generate` takes numbers, booleans and texts as parameters."""
    body = {"text_input": PROMPTS[0], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    spelled = {
        "use_beam_search": False,
        "best_of": 1,
        "n": "1",
        "top_k": -1,
        "min_p": 0.0,
        "length_penalty": 1.0,
        "early_stopping": "false",
        "detokenize": "True",
        "prompt_logprobs": 0,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
    }
    found = []
    for given in (body, body | spelled):
        request = urllib.request.Request(
            f"http://{server.http}/v2/models/writer/generate", json.dumps(given).encode()
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found.append(json.load(answer)["text_output"])
    assert found[0] == found[1]


def test_a_key_is_needed(front):
    """Without one, or with another, nothing is told; only the health is everybody's."""
    for key in ("", "a key", KEY + "x"):
        with (
            openai.OpenAI(
                base_url=f"{front.url}/v1", api_key=key or "-", max_retries=0
            ) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{front.url}/metrics", timeout=10)
    assert caught.value.code == 401
    assert json.load(urllib.request.urlopen(f"{front.url}/health", timeout=10)) == {"ready": True}


def test_metrics_are_the_servers(front, client):
    """With the backend's own among them."""
    client.completions.create(prompt="a", **GREEDY)
    request = urllib.request.Request(
        f"{front.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}
    )

    def told():
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.headers["content-type"].startswith("text/plain")
            return answer.read()

    assert comes_true(lambda: b"ge_text_generated_tokens_total{" in told())


def test_paths_and_bodies_that_are_none(front):
    """A wrong path, method, type or JSON is an error in OpenAI's form, too."""
    for method, path, kind, body, status in (
        ("GET", "/v2", "application/json", None, 404),
        ("GET", "/v1/completions", "application/json", None, 405),
        ("POST", "/v1/completions", "text/plain", "{}", 415),
        ("POST", "/v1/completions", "application/json", "{", 400),
        ("POST", "/v1/completions", "application/json", "[]", 400),
    ):
        connection = http.client.HTTPConnection(front.url.removeprefix("http://"), timeout=10)
        with contextlib.closing(connection):
            headers = {"Content-Type": kind, "Authorization": f"Bearer {KEY}"}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            told = json.loads(answer.read())
        assert (answer.status, told["error"]["type"]) == (status, "invalid_request_error")


def test_a_client_that_offers_http_2_is_answered_in_http_1(front, writer, capfd):
    """Its body is read, and the offer is no line of the log."""
    body = {"prompt": PROMPTS[0], "ignore_eos": True, **GREEDY}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    connection = http.client.HTTPConnection(front.url.removeprefix("http://"), timeout=10)
    with contextlib.closing(connection):
        for _ in range(2):  # on one connection
            path = "/v1/completions"
            connection.request("POST", path, json.dumps(body), {**headers, **OFFERS_HTTP_2})
            answer = connection.getresponse()
            told = json.loads(answer.read())
            assert answer.status == 200
            assert told["choices"][0]["text"] == writer.text(writer.truth(PROMPTS[0], TOKENS))
    assert "pgrade" not in capfd.readouterr().err


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels(server, front, client, stream):
    """Its text ends within a step or two, whether it came in pieces or not at all yet."""
    assert comes_true(lambda: metric(server, "ge_text_running") == 0)
    before = metric(server, "ge_text_finished_total", reason="cancelled")
    ask = {**GREEDY, "prompt": "a", "max_tokens": 240, "n": 128, "temperature": 1, "seed": 1}
    if stream:
        answer = client.completions.create(stream=True, **ask, **EXACT)
        next(iter(answer))
        answer.close()
    else:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        connection = http.client.HTTPConnection(front.url.removeprefix("http://"), timeout=60)
        with contextlib.closing(connection):
            body = json.dumps({**ask, "ignore_eos": True})
            connection.request("POST", "/v1/completions", body, headers)
            assert comes_true(lambda: metric(server, "ge_text_running") > 0)
    assert comes_true(
        lambda: (
            metric(server, "ge_text_finished_total", reason="cancelled") > before
            and metric(server, "ge_text_blocks_used") == 0
        ),
        seconds=20,
    )


def embed(triton, texts):
    given = grpcclient.InferInput("text", [len(texts), 1], "BYTES")
    given.set_data_from_numpy(np.array([[text.encode()] for text in texts], object))
    return triton.infer("text_embedding", [given]).as_numpy("embedding")


def test_embeddings_are_the_ensembles(server, client):
    """Of as many texts as a client likes, in their order, as numbers and as base64."""
    texts = [f"heavy rain and wind {number}" for number in range(20)]  # two requests for the server
    with grpcclient.InferenceServerClient(server.grpc) as triton:
        truth = np.concatenate([embed(triton, texts[:16]), embed(triton, texts[16:])])
    for form in ({}, {"encoding_format": "float"}, {"dimensions": 96}):
        answer = client.embeddings.create(model="text_embedding", input=texts, **form)
        assert [each.index for each in answer.data] == list(range(20))
        np.testing.assert_allclose([each.embedding for each in answer.data], truth, atol=1e-6)
    (one,) = client.embeddings.create(model="text_embedding", input=texts[3]).data
    np.testing.assert_allclose(one.embedding, truth[3], atol=1e-5)


def test_tokens_of_embeddings_are_counted_and_taken(client, made_models):
    """By the tokenizer of the ensemble; its tokens give the embedding of their text."""
    tokenizer = tokenizers.Tokenizer.from_file(
        str(made_models / "tokenizer" / "1" / "tokenizer.json")
    )
    texts = ["heavy rain and wind", "rain"]
    encoded = [each.ids for each in tokenizer.encode_batch(texts)]
    answer = client.embeddings.create(model="text_embedding", input=texts)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, encoded))
    for given in (encoded, [ids[1:-1] for ids in encoded]):
        again = client.embeddings.create(model="text_embedding", input=given)
        assert again.usage == answer.usage
        for one, other in zip(answer.data, again.data, strict=True):
            np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"model": "writer"}, openai.NotFoundError, "is not for this"),
        ({"input": [[1, 2]]}, openai.BadRequestError, "tokens that this model's tokenizer makes"),
        ({"input": ["a", 3]}, openai.BadRequestError, "a list of either"),
        ({"input": "rain " * 200}, openai.BadRequestError, "length is 128 tokens.*has 202"),
        ({"dimensions": 7}, openai.BadRequestError, "embeddings have 96"),
        ({"input": "a" * 5_000}, openai.BadRequestError, "5000 bytes, at most 4000"),
    ],
)
def test_embeddings_that_cannot_be_had(client, given, error, message):
    """The reason, with the right status."""
    with pytest.raises(error, match=message):
        client.embeddings.create(**{"model": "text_embedding", "input": "a", **given})


def rank(triton, query, documents):
    tensors = []
    for name, texts in (("text", [query] * len(documents)), ("text_pair", documents)):
        tensors.append(grpcclient.InferInput(name, [len(texts), 1], "BYTES"))
        tensors[-1].set_data_from_numpy(np.array([[text.encode()] for text in texts], object))
    return triton.infer("text_ranker", tensors).as_numpy("score")[:, 0]


def asked(front, path, **body):
    """Return status and JSON of a request by hand: OpenAI's client has no word for it."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(
        f"{front.url}{path}", json.dumps({"model": "text_ranker", **body}).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_put_in_the_rankers_order(server, front, path):
    """As many as a client likes; scores are the model's, the best first, tokens its tokenizer's."""
    query = "heavy rain and wind"
    documents = [
        f"the {word} {number}" for number in range(9) for word in ("wind", "match", "soup")
    ]
    with grpcclient.InferenceServerClient(server.grpc) as triton:
        logits = np.concatenate([rank(triton, query, documents[n : n + 9]) for n in (0, 9, 18)])
    status, answer = asked(front, path, query=query, documents=documents)
    assert status == 200
    told = {each["index"]: each for each in answer["results"]}
    scores = [each["relevance_score"] for each in answer["results"]]
    assert (sorted(told), scores) == (list(range(27)), sorted(scores, reverse=True))
    for place, document in enumerate(documents):
        assert told[place]["document"] == {"text": document}
        assert told[place]["relevance_score"] == pytest.approx(
            1 / (1 + np.exp(-logits[place])), 1e-4
        )
    assert "wind" in answer["results"][0]["document"]["text"]
    # [CLS], four words, [SEP], three words, [SEP].
    assert answer["usage"] == {"prompt_tokens": 27 * 10, "total_tokens": 27 * 10}
    _, few = asked(front, path, query=query, documents=documents, top_n=2, return_documents=False)
    best = [{key: each[key] for key in ("index", "relevance_score")} for each in answer["results"]]
    assert [each["index"] for each in few["results"]] == [each["index"] for each in best[:2]]
    assert all(set(each) == set(best[0]) for each in few["results"])


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_pairs_are_scored(server, front, path):
    """One text beside several, or side by side; in their order, as logits where that is wanted."""
    texts = ["heavy rain", "the match", "two eggs"]
    with grpcclient.InferenceServerClient(server.grpc) as triton:
        logits = rank(triton, "rain", texts)
    for first in ("rain", ["rain"] * 3):
        body = {"text_1": first, "text_2": texts, "use_activation": False}
        status, answer = asked(front, path, **body)
        assert (status, [each["index"] for each in answer["data"]]) == (200, [0, 1, 2])
        np.testing.assert_allclose([each["score"] for each in answer["data"]], logits, atol=1e-4)
    assert answer["object"] == "list"


def test_documents_are_cut_where_it_is_asked_for(front):
    """To so many tokens of a document, or of the whole pair; else as the model's tokenizer does."""
    query, document = "rain", "heavy rain " * 100

    def ranked(text, **given):
        _, answer = asked(front, "/v1/rerank", query=query, documents=[text], **given)
        return answer["results"][0]["relevance_score"], answer["usage"]["total_tokens"]

    short = ranked("heavy rain heavy")
    assert short[1] == 7
    assert ranked(document, max_tokens_per_doc=3) == pytest.approx(short)
    assert ranked(document, truncate_prompt_tokens=7) == pytest.approx(short)
    assert ranked(document)[1] == 128


@pytest.mark.parametrize(
    ("given", "status", "message"),
    [
        ({"model": "text_embedding"}, 404, "is not for this"),
        ({"documents": []}, 400, "list of one text at least"),
        (
            {"documents": ["rain " * 200], "truncation": False},
            400,
            "length is 128 tokens.*have 204",
        ),
        ({"query": "a" * 5_000}, 400, "query has 5000 bytes, at most 4000"),
        ({"documents": ["a" * 5_000]}, 400, "documents has 5000 bytes, at most 4000"),
        ({"query": "rain " * 9, "truncate_prompt_tokens": 5}, 400, "only documents are cut"),
        ({"instruction": "be kind"}, 400, "instruction is not known"),
    ],
)
def test_rankings_that_cannot_be_had(front, given, status, message):
    """The reason, with the right status."""
    found, error = asked(front, "/v1/rerank", **{"query": "rain", "documents": ["a"], **given})
    assert (found, bool(re.search(message, error["message"]))) == (status, True), error


def test_the_responses_api_is_another(client):
    """Its error names the one that is served."""
    with pytest.raises(openai.NotFoundError, match="this server has /v1/chat/completions"):
        client.responses.create(model="writer", input="hi")


@pytest.fixture(scope="module")
def opened():
    """A browser, started once; skipped where there is none."""
    program = find_browser()
    if program is None:
        pytest.skip("no browser here: apt install chromium")
    with opened_browser(program) as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_chats_and_compares(front, client, opened, width, scheme):
    """With a key, in a window of a phone and of a desk, by day and by night."""
    opened.console.clear()
    opened.show(front.url, width=width, scheme=scheme)
    opened.wait("!$('key-card').hidden")
    opened.ask(f"$('key').value = {json.dumps(KEY)}; $('key-form').requestSubmit()")
    opened.wait("$('chat-model').value === 'writer' && $('key-card').hidden")
    opened.ask("$('temperature').value = 0; $('limit').value = 9; $('message').value = 'hi <b>'")
    opened.ask("$('send').click(); $('compare').click()")
    opened.wait("$('chat-note').textContent.startsWith('9 tokens; the first after')")
    told = opened.ask("[...document.querySelectorAll('.said')].map((box) => box.textContent)")
    ask = {"messages": [{"role": "user", "content": "hi <b>"}], **GREEDY, "max_tokens": 9}
    truth = client.chat.completions.create(**ask).choices[0].message.content
    assert told == ["hi <b>", truth]
    opened.wait("!$('compared').hidden")
    texts = opened.ask("[$('one').value, $('other').value]")
    data = client.embeddings.create(model="text_embedding", input=texts).data
    one, other = (np.array(each.embedding) for each in data)
    cosine = one @ other / np.sqrt((one @ one) * (other @ other))
    assert float(opened.ask("$('likeness').textContent")) == pytest.approx(cosine, abs=6e-4)
    assert opened.ask("document.documentElement.scrollWidth") <= width
    background = opened.ask("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 3 * 128) is (scheme == "dark")
    assert opened.ask(LEAST) >= MIN_CONTRAST
    # The browser itself tells of the one answer without a key.
    assert all("401" in line for line in opened.console)


@pytest.fixture
def endless(monkeypatch):
    """Texts stand still after some tokens: a browser that has to wait never gets them whole."""
    write = triton.TritonConnection.write

    async def held(connection, call):
        async with contextlib.aclosing(write(connection, call)) as parts:
            said = 0
            async for pieces in parts:
                yield pieces
                said += 1
                if said == 20:
                    await asyncio.Event().wait()

    monkeypatch.setattr(triton.TritonConnection, "write", held)


def test_the_page_tells_what_went_wrong(front, opened, endless):
    """An error of the server stands below the chat, and a text can be stopped."""
    opened.show(front.url, width=1400, scheme="light")
    opened.wait("!$('key-card').hidden")
    opened.ask(f"$('key').value = {json.dumps(KEY)}; $('key-form').requestSubmit()")
    opened.wait("$('chat-model').value === 'writer'")
    opened.ask("$('limit').value = 100000; $('message').value = 'hi'; $('send').click()")
    opened.wait("$('chat-note').textContent.includes('lower max_tokens')")
    assert opened.ask("[talk.length, $('send').disabled, $('stop').disabled]") == [0, False, True]
    opened.ask("$('clear').click(); $('chat-note').textContent = ''")
    opened.ask(STOPPED_EARLY)
    opened.ask("$('limit').value = 230; $('message').value = 'hi'; $('send').click()")
    opened.wait("$('chat-note').textContent === 'stopped'")


def test_a_chat_begun_anew_has_nothing_of_the_old_one(front, opened):
    """Though its answer was being written."""
    opened.show(front.url, width=1400, scheme="light")
    opened.wait("!$('key-card').hidden")
    opened.ask(f"$('key').value = {json.dumps(KEY)}; $('key-form').requestSubmit()")
    opened.wait("$('chat-model').value === 'writer'")
    opened.ask(STOPPED_EARLY.replace("stop", "clear"))
    opened.ask("$('limit').value = 230; $('message').value = 'old'; $('send').click()")
    opened.wait("!$('talk').children.length")
    assert opened.ask("[$('send').disabled, $('stop').disabled]") == [False, True]
    opened.ask("$('temperature').value = 0; $('limit').value = 9; $('message').value = 'hi <b>'")
    opened.ask("$('send').click()")
    opened.wait("$('chat-note').textContent.startsWith('9 tokens')")
    assert opened.ask("talk.map((each) => each.role)") == ["user", "assistant"]
    assert opened.ask("talk[0].content") == "hi <b>"
    assert opened.ask("$('talk').children.length") == 2


def test_the_page_is_held_to_itself(front, opened):
    """What is written into it does not run, and it cannot ask others."""
    with urllib.request.urlopen(front.url, timeout=10) as answer:
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; ")
    opened.show(front.url, width=400, scheme="light")
    opened.console.clear()
    written = "<img src='data:,' onerror='ran = 1'>"
    opened.ask(f"document.body.insertAdjacentHTML('beforeend', {json.dumps(written)})")
    opened.ask("fetch('http://localhost:1/').catch(() => { globalThis.refused = 1; }); 1")
    opened.wait("globalThis.refused === 1")
    assert opened.ask("typeof ran") == "undefined"
    assert any("Content Security Policy" in line for line in opened.console)


def test_a_model_for_something_else_is_none(client):
    """An embedding model writes nothing."""
    with pytest.raises(openai.NotFoundError, match="is not for this"):
        client.completions.create(model="text_embedding", prompt="a")


def status_of(ask):
    try:
        ask()
    except openai.APIStatusError as error:
        return error.status_code
    return 200


@pytest.mark.parametrize(
    "name", ["\ud800", "reader:\ud800", "a" * 17_000, "writer\0", "text_embedding\0 of theirs"]
)
def test_a_name_that_no_model_can_have_is_unknown(client, name):
    """Whichever door it comes through; the server itself could not be asked for it."""
    given = [
        ("/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/completions", {"prompt": "a"}),
        ("/embeddings", {"input": "a"}),
    ]
    for path, body in given:
        with pytest.raises(openai.NotFoundError, match="does not exist here") as told:
            client.post(path, cast_to=object, content=json.dumps({"model": name, **body}).encode())
        assert told.value.code == "model_not_found"
        assert len(told.value.message) < 1000
    with pytest.raises(openai.NotFoundError, match="does not exist here"):
        client.models.retrieve("%ed%a0%80" if name.endswith("\ud800") else name)


def test_a_model_that_is_not_ready_says_so(server, client):
    """503 while it goes and comes, 404 when it is gone, and never that something broke."""

    def ask():
        client.completions.create(prompt="a", **GREEDY)

    def embed():
        client.embeddings.create(model="text_embedding", input="a")

    with grpcclient.InferenceServerClient(server.grpc) as triton:
        for model, each, gone in (("writer", ask, 404), ("pooling", embed, 503)):
            assert status_of(each) == 200
            triton.unload_model(model)
            seen = set()
            try:
                assert comes_true(lambda: seen.add(status_of(each)) or gone in seen, seconds=60)  # noqa: B023
            finally:
                triton.load_model(model)
            assert seen <= {200, 404, 503}
            assert comes_true(lambda: status_of(each) == 200, seconds=60)  # noqa: B023


@pytest.fixture
def elsewhere(server):
    """A client of the API on a machine that does not see the models' folders."""
    options = FrontOptions(url=server.grpc, port=0)
    with (
        OpenAIFront(options) as front,
        openai.OpenAI(
            base_url=f"{front.url}/v1", api_key="none", max_retries=0, timeout=60
        ) as connected,
    ):
        yield connected


def test_the_models_folders_may_be_elsewhere(elsewhere, client, writer):
    """Chats, calls of tools and adapters are as where they are seen."""
    messages = [{"role": "user", "content": "hello"}]
    truth = writer.text(writer.truth(chat_prompt(*messages), TOKENS))
    for stream in (False, True):
        given = {"messages": messages, "stream": stream, **GREEDY, **EXACT}
        assert text_of(elsewhere.chat.completions.create(**given)) == truth
    assert [model.id for model in elsewhere.models.list()] == [
        model.id for model in client.models.list()
    ]
    short = [{"role": "user", "content": "a"}]
    given = {"messages": short, "tools": TOOLS, **SHORT, "max_tokens": 70}
    (call,), *_ = calls_of(
        elsewhere.chat.completions.create(
            **given, tool_choice="required", parallel_tool_calls=False
        )
    )
    assert call[0] in {"f", "g"}


ALONE = """import sys
from absent import leave_out
leave_out("ge_backend,ge_text,ge_tools")
from ge_openai.front import OpenAIFront
from ge_openai.options import FrontOptions
front = OpenAIFront(FrontOptions(url=sys.argv[1], port=0))
print(front.url, flush=True)
front.run()
"""


@pytest.fixture
def alone(server, tmp_path):
    """The API in a process of its own, in an empty folder, without any other root; its address."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    started = [sys.executable, "-c", ALONE, server.grpc]
    with subprocess.Popen(
        started, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_the_api_needs_nothing_but_the_server(alone, made_models):
    """No model's folder, no repository and none of the backend: models say how they tokenize."""
    asked = {"base_url": f"{alone}/v1", "api_key": "none", "max_retries": 0, "timeout": 60}
    with openai.OpenAI(**asked) as client:
        answer = client.embeddings.create(model="text_embedding", input=["heavy rain", "rain"])
        assert answer.usage.prompt_tokens == 4 + 3
        path = made_models / "tokenizer" / "1" / "tokenizer.json"
        ids = tokenizers.Tokenizer.from_file(str(path)).encode("heavy rain").ids
        again = client.embeddings.create(model="text_embedding", input=[ids])
        np.testing.assert_allclose(again.data[0].embedding, answer.data[0].embedding, atol=1e-5)
        with pytest.raises(openai.BadRequestError, match="length is 128 tokens") as error:
            client.embeddings.create(model="text_embedding", input="rain " * 200)
        assert (error.value.param, error.value.code) == ("input", "context_length_exceeded")
        given = {"model": "text_ranker", "query": "rain", "documents": ["heavy rain " * 9]}
        ranked = client.post("/rerank", body={**given, "max_tokens_per_doc": 3}, cast_to=object)
        assert ranked["usage"]["total_tokens"] == 7
        messages = [{"role": "user", "content": "hello"}]
        assert client.chat.completions.create(messages=messages, **GREEDY).usage.prompt_tokens > 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_was_loaded_anew_is_asked_for_its_template_again(
    server, elsewhere, writer, stream
):
    """Once it is loaded: until then its prompts are those of the files that it was loaded from."""
    messages = [{"role": "user", "content": "hello"}]
    given = {"messages": messages, "stream": stream, **GREEDY, **EXACT}
    first = writer.text(writer.truth(chat_prompt(*messages), TOKENS))
    second = writer.text(writer.truth("hello!", TOKENS))
    assert first != second
    file = writer.folder / "chat_template.jinja"
    with grpcclient.InferenceServerClient(server.grpc) as triton:
        try:
            assert text_of(elsewhere.chat.completions.create(**given)) == first
            file.write_text("{{ messages[0].content }}!")
            assert text_of(elsewhere.chat.completions.create(**given)) == first
            reload(triton)
            assert text_of(elsewhere.chat.completions.create(**given)) == second
        finally:
            file.unlink()
            reload(triton)
        assert text_of(elsewhere.chat.completions.create(**given)) == first


def reload(triton):
    triton.unload_model("writer")
    assert comes_true(lambda: not triton.is_model_ready("writer"), seconds=60)
    triton.load_model("writer")


def text_of(answer):
    """Return the text of a chat's answer, whole or as a stream."""
    if isinstance(answer, openai.Stream):
        return "".join(event.choices[0].delta.content or "" for event in answer)
    return answer.choices[0].message.content


def test_a_server_that_stands_still_is_unavailable(server, client, monkeypatch):
    """503 for all that it is asked, until it goes on."""
    asks = [
        client.models.list,
        lambda: client.completions.create(prompt="a", **GREEDY),
        lambda: client.completions.create(prompt="a", **GREEDY, stream=True),
        lambda: client.completions.create(prompt="a", **{**GREEDY, "model": "reader"}),
        lambda: client.embeddings.create(model="text_embedding", input="a"),
    ]
    assert [status_of(ask) for ask in asks] == [200, 200, 200, 404, 200]
    monkeypatch.setattr(triton, "READY_TIMEOUT_S", 1)
    told = []
    threads = [threading.Thread(target=lambda ask=ask: told.append(status_of(ask))) for ask in asks]
    os.kill(server.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert told == [503] * len(asks)
        assert time.monotonic() - begun < 15
    finally:
        os.kill(server.pid, signal.SIGCONT)
        for thread in threads:
            thread.join()
    assert comes_true(lambda: status_of(asks[1]) == 200, seconds=60)


@contextlib.contextmanager
def silent(server):
    """Have no text go on, and no response be sent: of a stub that dies with a lock the host dies."""
    processes = [psutil.Process(pid) for pid in executors(server)]
    for process in processes:
        process.suspend()
    time.sleep(0.5)  # less than until a heartbeat
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@pytest.mark.parametrize("stream", [False, True])
def test_texts_of_a_process_that_dies_end(server, client, monkeypatch, stream):
    """The host never ends them, and calls the model ready; the API says 503, or so in the stream."""
    monkeypatch.setattr(triton, "READY_TIMEOUT_S", 1.5)
    told = []

    def ask():
        try:
            answer = client.completions.create(
                prompt="a", n=100, stream=stream, **{**GREEDY, "max_tokens": 200}, **EXACT
            )
            for _ in answer:
                begun.set()
            told.append("whole")
        except openai.APIError as error:
            told.append(error.message)

    begun, asking = threading.Event(), threading.Thread(target=ask)
    asking.start()
    if stream:
        assert begun.wait(20)
    else:
        assert comes_true(lambda: metric(server, "ge_text_running") > 0)
    (stub,) = [each for each in stubs_of(server.pid) if each.serves("writer", [])]
    with silent(server):
        os.kill(stub.pid, signal.SIGKILL)
    with grpcclient.InferenceServerClient(server.grpc) as host:
        try:
            asking.join(20)
            assert [text.count("'writer' has died") for text in told] == [1]
            assert status_of(lambda: client.completions.create(prompt="a", **GREEDY)) == 503
        finally:
            reload(host)
    assert comes_true(
        lambda: status_of(lambda: client.completions.create(prompt="a", **GREEDY)) == 200
    )


def test_streams_of_many_clients_at_once(front, writer):
    """Each gets its own text, whole."""
    truth = {prompt: writer.text(writer.truth(prompt, TOKENS)) for prompt in PROMPTS}

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=KEY) as client:

            async def ask(prompt):
                stream = await client.completions.create(
                    prompt=prompt, stream=True, **GREEDY, **EXACT
                )
                return "".join([event.choices[0].text async for event in stream])

            return await asyncio.gather(*(ask(prompt) for prompt in PROMPTS * 4))

    assert asyncio.run(ask_all()) == [truth[prompt] for prompt in PROMPTS * 4]
