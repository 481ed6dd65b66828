"""Models that say what a script has, by OpenAI's client on the real server: calls and formats."""

import json

import openai
import pytest

from builders.scripted import write_scripted
from ge_openai.options import FrontOptions
from ge_tools.openai import open_front

TAGGED = """\
{% if tools %}Call by <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>: {{ tools | tojson }}
{% endif %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}<go>"""
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
SAYS = {"<go>": ("<tool_call>", CALL, "</tool_call>")}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}},
            "required": ["city"],
        },
    },
}
FUNCTIONS = """\
{% if tools %}Call by <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>: {{ tools | tojson }}
{% endif %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}
{% endfor %}<go>"""
WRITTEN = "\n<function=get_weather>\n<parameter=city>\nPa\nris\n</parameter>\n</function>\n"
ASKED = [{"role": "user", "content": "How is the weather?"}]


@pytest.fixture(scope="module")
def client(triton_server, tmp_path_factory):
    """OpenAI's client of the API before the models."""
    repository = tmp_path_factory.mktemp("models")
    write_scripted(repository / "beside", SAYS, TAGGED, beside=True)
    says = {"<go>": ("<tool_call>", WRITTEN, "</tool_call>")}
    write_scripted(repository / "coder", says, FUNCTIONS)
    server = triton_server(repository)
    options = FrontOptions(url=server.grpc, port=0)
    with (
        open_front(options) as front,
        openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("text", ["<|im_end|>", "a <tool_call> b"])
def test_an_answer_may_have_to_read_like_a_special_token(client, text):
    """It is told in letters, whole."""
    answer = client.chat.completions.create(
        model="beside", messages=ASKED, extra_body={"guided_choice": [text]}
    )
    assert answer.choices[0].message.content == text
    schema = {"type": "object", "properties": {text: {"const": text}}, "required": [text]}
    described = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = client.chat.completions.create(
        model="beside", messages=ASKED, response_format=described
    )
    assert json.loads(answer.choices[0].message.content) == {text: text}


def test_what_is_not_kept_to_is_told_with_the_answer(client):
    """Whole and in the first event of a stream, by the field that says it; strict says nothing."""
    properties = {"a": {"type": "string", "format": "path", "maxLength": 3}}
    schema = {"type": "object", "properties": properties, "required": ["a"]}
    described = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    asked = {"model": "beside", "messages": ASKED, "response_format": described}
    said = ["response_format.json_schema.schema is kept to but for this: Unknown format: path"]
    answer = client.chat.completions.create(**asked)
    assert answer.model_extra == {"warnings": said}
    first, *others = client.chat.completions.create(stream=True, n=2, **asked)
    assert first.model_extra == {"warnings": said}
    assert not any(event.model_extra for event in others)
    with client.chat.completions.stream(**asked) as stream:
        assert stream.get_final_completion().choices[0].message.content
    properties["a"] = {"type": "string", "pattern": "^(?=a)[ab]{3}$"}
    (said,) = client.chat.completions.create(**asked).model_extra["warnings"]
    assert said.endswith('Unimplemented parts of the pattern "^(?=a)[ab]{3}$"')
    properties["a"] = {"type": "string", "maxLength": 3}
    assert not client.chat.completions.create(**asked).model_extra


def called(answer):
    """Return the names and arguments of an answer's calls."""
    calls = answer.choices[0].message.tool_calls or ()
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tokens_that_only_the_settings_name_are_tokens(client, choice):
    """In the prompt, in what is written, in what holds the answer, and where it ends."""
    answer = client.chat.completions.create(
        model="beside", messages=ASKED, tools=[WEATHER], tool_choice=choice, max_tokens=60
    )
    assert called(answer) == [("get_weather", {"city": "Paris"})]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.completion_tokens < len(CALL)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", "or a format"])
def test_calls_with_a_parameter_each(client, choice, stream):
    """As Qwen's coders write them: texts stand as they are, and the chat goes on behind them."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    described = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    given = {"response_format": described} if choice == "or a format" else {"tool_choice": choice}
    asked = {"model": "coder", "messages": ASKED, "tools": [WEATHER], "max_tokens": 200, **given}
    if stream:
        with client.chat.completions.stream(**asked) as events:
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.create(**asked)
    assert called(answer) == [("get_weather", {"city": "Pa\nris"})]
    (call,) = answer.choices[0].message.tool_calls
    function = {"name": call.function.name, "arguments": call.function.arguments}
    calls = [{"id": call.id, "type": "function", "function": function}]
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    further = [*ASKED, {"role": "assistant", "tool_calls": calls}, result]
    again = client.chat.completions.create(model="coder", messages=further)
    assert again.choices[0].message.content.startswith("<tool_call>\n<function=get_weather>")
