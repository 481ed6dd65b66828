"""Clients of the ecosystem, by their public packages, do their ordinary work on the real server."""

from pathlib import Path

import pytest
from demo import chat_model
from demo.chats import write_chat_model
from rich.console import Console

from builders.clients import CLIENTS, installed, run
from builders.environments import NotHere
from builders.scripted import write_scripted
from ge_openai.front import OpenAIFront
from ge_openai.options import FrontOptions

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = """\
{% if tools %}Call by <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>: {{ tools | tojson }}
{% endif %}
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>
{%- endfor %}
{% endfor %}{{ "<result>" if messages[-1].role == "tool" else "<question>" }}"""
# Calls the tool when it is asked, and tells its result.
SAYS = {
    "<question>": (
        "<tool_call>",
        '{"name": "get_weather", "arguments": {"city": "Paris"}}',
        "</tool_call>",
    ),
    "<result>": ("It is sunny in Paris.",),
}


@pytest.fixture(scope="module")
def checkpoint():
    """SmolLM2, a chat model whose answers mean something."""
    return chat_model.prepare(ROOT / ".cache" / "chat_model", Console())


@pytest.fixture(scope="module")
def front(triton_server, made_models, checkpoint, tmp_path_factory):
    """The API before `smollm2`, `caller`, an embedding model and a ranker."""
    repository = tmp_path_factory.mktemp("models")
    write_chat_model(repository, checkpoint)
    write_scripted(repository / "caller", SAYS, TEMPLATE)
    for name in ("text_embedding", "tokenizer", "text_encoder", "pooling"):
        (repository / name).symlink_to(made_models / name)
    for name in ("text_ranker", "pair_tokenizer", "ranker_head"):
        (repository / name).symlink_to(made_models / name)
    server = triton_server(repository)
    options = FrontOptions(url=server.grpc, metrics=server.metrics, port=0)
    with OpenAIFront(options) as front:
        yield front


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.pinned)
def test_a_client_does_its_work(front, client, checkpoint, installation, tmp_path):
    """What it gets is asserted by its script, which prints some of it."""
    arguments = (front.url, str(checkpoint), str(installation.libraries[0]))
    try:
        said = run(client, installed(client), tmp_path, *arguments)
    except NotHere as error:
        pytest.skip(f"{client.pinned} cannot be had here: {error}")
    assert said.strip()
