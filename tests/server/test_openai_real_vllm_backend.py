"""The API in front of Triton's real vLLM backend: what the stand-in says, the real one says.

GE_VLLM_BACKEND names a checkout of triton-inference-server/vllm_backend, and GE_VLLM_PYTHON the
Python of a virtual environment that has vLLM, of the version that runs the tests. Where the
server's stub misreads arrays of numpy 2 (docs/releases.md) that environment needs numpy 1.
"""

import dataclasses
import json
import os
import subprocess
import urllib.request
from pathlib import Path

import openai
import pytest
from demo.chat_model import prepare
from rich.console import Console

from builders.vllm_backend import ENVIRONMENT, write_real_backend
from builders.waiting import comes_true
from ge_openai.front import OpenAIFront
from ge_openai.options import FrontOptions

PYTHON, CHECKOUT = (os.environ.get(name, "") for name in ("GE_VLLM_PYTHON", "GE_VLLM_BACKEND"))
# Imports of vLLM alone take a minute on a busy machine, and are done three times.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(590),
    pytest.mark.skipif(
        not (PYTHON and CHECKOUT), reason="GE_VLLM_PYTHON and GE_VLLM_BACKEND name no vLLM backend"
    ),
]

ROOT = Path(__file__).resolve().parents[2]
ENGINE = {
    "max_model_len": 512,
    "max_num_seqs": 8,
    "kv_cache_memory_bytes": 64 << 20,
    "enforce_eager": True,
    "enable_lora": "true",
    "max_lora_rank": 8,
}
# An adapter of random numbers, made where torch is.
ADAPTER = """\
import json, pathlib, sys, torch
from safetensors.torch import save_file
config, into = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
size, changes = config["hidden_size"], {}
torch.manual_seed(0)
for layer in range(config["num_hidden_layers"]):
    name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
    changes[f"{name}.lora_A.weight"] = torch.randn(8, size) * 0.2
    changes[f"{name}.lora_B.weight"] = torch.randn(size, 8) * 0.2
save_file(changes, str(into / "adapter_model.safetensors"))
made = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
(into / "adapter_config.json").write_text(json.dumps({**made, "task_type": "CAUSAL_LM"}))
"""
HI = [{"role": "user", "content": "Name a city."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ASK = {"model": "smol", "prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder, adapter = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("pirate")
    checkpoint = prepare(ROOT / ".cache" / "chat_model", Console(stderr=True))
    subprocess.run([PYTHON, "-c", ADAPTER, checkpoint / "config.json", adapter], check=True)
    version = folder / "smol" / "1"
    version.mkdir(parents=True)
    environment = Path(PYTHON).absolute().parents[1]
    (folder / "smol" / "config.pbtxt").write_text(ENVIRONMENT.format(folder=environment))
    (version / "model.json").write_text(json.dumps({"model": str(checkpoint), **ENGINE}))
    (version / "multi_lora.json").write_text(json.dumps({"pirate": str(adapter)}))
    return folder


@pytest.fixture(scope="module")
def server(installation, servers, repository, tmp_path_factory):
    backends = tmp_path_factory.mktemp("backends")
    (backends / "python").symlink_to(installation.backends / "python")
    write_real_backend(Path(CHECKOUT), backends / "vllm")
    yield servers.start(
        dataclasses.replace(installation, backends=backends),
        repository,
        start_timeout_s=540,
        exit_timeout_s=30,
        environment={"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        arguments=("--model-control-mode=explicit", "--load-model=*"),
    )
    servers.leave()


@pytest.fixture(scope="module")
def client(server, repository):
    given = json.loads((repository / "smol" / "1" / "model.json").read_text())
    options = FrontOptions(url=server.grpc, port=0, tokenizers={"smol": Path(given["model"])})
    with OpenAIFront(options) as front:
        yield openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0, timeout=300)


def texts(answer):
    return [choice.text for choice in answer.choices]


def test_texts_whole_and_in_pieces(client):
    """The same text and the same counts, cut before a stop text, and for each sample its own."""
    whole = client.completions.create(**ASK)
    *pieces, last = client.completions.create(
        **ASK, stream=True, stream_options={"include_usage": True}
    )
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 8)
    assert last.usage == whole.usage
    (choice,) = client.completions.create(**ASK, stop=[whole.choices[0].text[4:7]]).choices
    assert (choice.text, choice.finish_reason) == (whole.choices[0].text[:4], "stop")
    drawn = [
        texts(client.completions.create(**{**ASK, "temperature": 1}, n=2, seed=5)) for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 2


def test_log_probabilities(client):
    """A row for each token, the drawn one first; of a chat as many as are asked for."""
    found = client.completions.create(**ASK, logprobs=2).choices[0].logprobs
    assert len(found.tokens) == len(found.top_logprobs) == 8
    assert all(len(best) == 2 for best in found.top_logprobs)
    chat = client.chat.completions.create(
        model="smol", messages=HI, temperature=0, max_tokens=3, logprobs=True, top_logprobs=2
    )
    for token in chat.choices[0].logprobs.content:
        assert (token.token, len(token.top_logprobs)) == (token.top_logprobs[0].token, 2)


def test_an_answer_in_a_format_and_a_call(client):
    """By a schema, whole and in pieces, and as the arguments of a tool that is named."""
    form = {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}}
    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    ask = {"model": "smol", "messages": HI, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**ask, response_format=form).choices[0].message.content
    assert json.loads(whole)["city"] in {"Paris", "Rome"}
    pieces = client.chat.completions.create(**ask, response_format=form, stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole
    chosen = {"type": "function", "function": {"name": "look"}}
    message = client.chat.completions.create(**ask, tools=[tool], tool_choice=chosen)
    (call,) = message.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in {"Paris", "Rome"}


def test_an_adapter_is_a_model(client):
    """It writes otherwise, though its model does not say that it has it; another is unknown."""
    assert [model.id for model in client.models.list()] == ["smol"]
    adapted = client.completions.create(**{**ASK, "model": "smol:pirate"})
    assert texts(adapted) != texts(client.completions.create(**ASK))
    with pytest.raises(openai.NotFoundError, match="LoRA clerk is not supported"):
        client.completions.create(**{**ASK, "model": "smol:clerk"})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"prompt": "word " * 600}, None, "maximum context length is 512"),
        ({"extra_body": {"stop_token_ids": [99999]}}, "stop_token_ids", "out-of-vocab"),
        ({"extra_body": {"allowed_token_ids": []}}, "allowed_token_ids", "empty"),
        ({"extra_body": {"guided_regex": "a("}}, None, "regex"),
        ({"extra_body": {"guided_json": {"type": "nonsense"}}}, None, "nonsense"),
        ({"temperature": -1}, None, "refuses the sampling parameters"),
        ({"max_tokens": 0}, None, "refuses the sampling parameters"),
        ({"stop": [""]}, None, "refuses the sampling parameters"),
        ({"extra_body": {"min_tokens": 40}}, None, "refuses the sampling parameters"),
    ],
)
def test_what_it_refuses_is_the_requests_fault(client, given, param, message, stream):
    """As the stand-in refuses it in test_openai_vllm_backend.py."""
    with pytest.raises(openai.BadRequestError, match=message) as error:
        client.completions.create(**{**ASK, "stream": stream, **given})
    assert error.value.param == param
    assert (error.value.code == "context_length_exceeded") is ("prompt" in given)


def test_a_client_that_goes_ends_its_text(client, server):
    """Vllm is told, within a stream and within an answer that is awaited whole."""
    log = server.options.log_file
    long = {**ASK, "max_tokens": 480, "extra_body": {"ignore_eos": True}}
    with client.completions.create(**long, stream=True) as events:
        next(iter(events))
    assert comes_true(lambda: log.read_text().count("Successfully cancelled") == 1)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1).completions.create(**long)
    assert comes_true(lambda: log.read_text().count("Successfully cancelled") == 2)


def test_a_model_that_is_unloaded_ends_its_texts_first(client, server):
    """A stream comes to its end; then the model is not listed and not ready."""
    events = iter(
        client.completions.create(
            **{**ASK, "max_tokens": 100}, extra_body={"ignore_eos": True}, stream=True
        )
    )
    next(events)
    url = f"http://{server.http}/v2/repository/models/smol/unload"
    urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=60).close()
    *_, last = events
    assert last.choices[0].finish_reason == "length"
    assert list(client.models.list()) == []
    with pytest.raises(openai.APIStatusError) as error:
        client.completions.create(**ASK)
    assert error.value.status_code in {404, 503}
