"""One checkpoint behind both engines on the real server: vLLM in the executor's place, and ours."""

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest
from demo.chat_model import FILES, prepare
from rich.console import Console

from builders import metrics
from builders.null_models import comes_true
from ge_openai.call_forms import form_of
from ge_openai.front import OpenAIFront
from ge_openai.options import FrontOptions
from ge_openai.schemas import read_response_format
from ge_openai.structure import call_or_format
from ge_text.models.json_schema import with_prepared_rules
from ge_tools.tritonserver.directory import processes_of

PYTHON = os.environ.get("GE_VLLM_PYTHON", "")
REASON = "GE_VLLM_PYTHON names no Python that has vLLM"
# vLLM alone takes a minute to start.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(570),
    pytest.mark.skipif(not PYTHON, reason=REASON),
]

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "1, 2, 3, 4, 5, 6,",
    "Once upon a time there was a",
)
GREEDY = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


def setting(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


CONFIGS = {
    "ours": setting("kv_cache_bytes", "32MiB"),
    "theirs": setting("engine", "vllm")
    + setting("vllm.max_model_len", "512")
    + setting("vllm.max_num_seqs", "8")
    + setting("vllm.kv_cache_memory_bytes", "64M")
    + setting("vllm.enforce_eager", "true"),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    checkpoint = prepare(ROOT / ".cache" / "chat_model", Console(stderr=True))
    for name, parameters in CONFIGS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        for file in FILES:
            (version / file).symlink_to(checkpoint / file)
        (folder / name / "config.pbtxt").write_text(f'backend: "ge"\n{parameters}')
    return folder


@pytest.fixture(scope="module")
def server(triton_server, repository):
    return triton_server(repository, environment={"GE_VLLM_PYTHON": PYTHON})


def ask(server, model, prompt, sampling, **given):
    """Return the events of one stream, as they come."""
    body = {"text_input": prompt, "stream": True, "sampling_parameters": json.dumps(sampling)}
    url = f"http://{server.http}/v2/models/{model}/generate_stream"
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body | given).encode()), timeout=400
    ) as answer:
        for line in answer:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])


def text(server, model, prompt, sampling=GREEDY):
    return "".join(event["text_output"] for event in ask(server, model, prompt, sampling))


def metric(server, name, **labels):
    return metrics.metric(server, name, **{"model": "theirs", **labels})


def executor_of_vllm(server):
    (found,) = (
        process
        for process in map(psutil.Process, processes_of(server.directory.run))
        if "-vllm-" in " ".join(process.cmdline())
    )
    return found


def lives(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_both_engines_write_the_same(server):
    """Four prompts at once, greedily: the very same texts, but where two tokens are a tie."""
    with ThreadPoolExecutor(8) as threads:
        ours = threads.map(lambda prompt: text(server, "ours", prompt), PROMPTS)
        theirs = threads.map(lambda prompt: text(server, "theirs", prompt), PROMPTS)
    same = [mine == other for mine, other in zip(ours, theirs, strict=True)]
    assert sum(same) >= len(PROMPTS) - 1


def test_wishes_mean_the_same(server):
    """A stop text is cut off, samples come with log-probabilities, and nonsense is a 400."""
    whole = text(server, "theirs", PROMPTS[2])
    assert text(server, "theirs", PROMPTS[2], {**GREEDY, "stop": [whole[4:7]]}) == whole[:4]
    wishes = {"n": 2, "seed": 5, "temperature": 1.0, "max_tokens": 4, "logprobs": 2}
    asked = {"stream": False, "return_logprobs": True, "return_finish_reason": True}
    drawn = [list(ask(server, "theirs", PROMPTS[0], wishes, **asked)) for _ in range(2)]
    assert drawn[0] == drawn[1]
    tokens = [json.loads(row) for row in drawn[0][0]["logprobs"]]
    assert all(2 <= len(entries) <= 3 for sample in tokens for entries in sample)
    with pytest.raises(urllib.error.HTTPError) as raised:
        text(server, "theirs", "a", {"max_tokens": 600})
    assert raised.value.code == 400
    assert "the model has 512 positions" in raised.value.read().decode()


# What vLLM itself asks of a request before it takes it on, and the compiler that it then chooses.
VALIDATES = """\
import json, sys
from types import SimpleNamespace
from transformers import AutoTokenizer
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
model, settings = SimpleNamespace(is_diffusion=False), SimpleNamespace(backend=sys.argv[2])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
for given in json.load(sys.stdin):
    wishes = SamplingParams(structured_outputs=StructuredOutputsParams(**given))
    wishes._validate_structured_outputs(model, settings, tokenizer)
    print("chosen", wishes.structured_outputs._backend)
"""
FORMS = (
    *("<tool_call>", "<tool_call><function=", "[TOOL_CALLS]", "[TOOL_CALLS][ARGS]"),
    *("<|tool_call|>", 'Respond as {"name": function name, "parameters": dictionary of'),
)


@pytest.mark.parametrize("compiler", ["auto", "xgrammar", "guidance"])
def test_vllm_takes_what_holds_tools_and_a_format(repository, compiler):
    """In every form of calls, whose tags are text or tokens."""
    weather = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [
        {"type": "function", "function": {"name": "get_weather", "parameters": weather}},
        {"type": "function", "function": {"name": "now"}},
    ]
    answer = read_response_format({"type": "json_object", "schema": SCHEMA})
    tokens = ({}, {"<tool_call>": 5, "</tool_call>": 6, "[TOOL_CALLS]": 7, "<|tool_call|>": 8})
    asked = [
        call_or_format(form_of(form), tools, wanted, known, several=several).sampling
        for form in FORMS
        for wanted in (None, answer)
        for known in tokens
        for several in (True, False)
    ]
    given = json.dumps([{"grammar": with_prepared_rules(each["guided_grammar"])} for each in asked])
    checkpoint = str(repository / "theirs" / "1")
    command = [PYTHON, "-c", VALIDATES, checkpoint, compiler]
    said = subprocess.run(command, input=given, check=True, capture_output=True, text=True).stdout
    chosen = [line for line in said.splitlines() if line.startswith("chosen")]
    assert len(chosen) == len(asked)
    assert set(chosen) <= {"chosen xgrammar", "chosen guidance"}


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "large": {"type": "boolean"}},
    "required": ["city", "large"],
    "additionalProperties": False,
}


def test_answers_keep_to_a_form(server):
    """By the same names as with our own engine; what cannot be compiled is a 400 with the reason."""
    wishes = {"max_tokens": 40, "temperature": 0}
    told = json.loads(text(server, "theirs", PROMPTS[0], {**wishes, "guided_json": SCHEMA}))
    assert told["city"] in {"Paris", "Rome"}
    assert isinstance(told["large"], bool)
    for name, form, pattern in (
        ("guided_regex", "[0-9]{3}-[a-c]{2}x", "[0-9]{3}-[a-c]{2}x"),
        ("guided_choice", ["a red one", "a blue one"], "a (red|blue) one"),
        ("guided_grammar", 'root ::= "so " ("be" | "is") " it"', "so (be|is) it"),
        ("guided_grammar", 'start: "so " ("be" | "is") " it"', "so (be|is) it"),
    ):
        found = text(server, "theirs", PROMPTS[0], {**wishes, "ignore_eos": True, name: form})
        assert re.fullmatch(pattern, found), (name, found)
    with pytest.raises(urllib.error.HTTPError) as raised:
        text(server, "theirs", "a", {**wishes, "guided_regex": "a("})
    assert raised.value.code == 400
    assert "vLLM refuses the request" in raised.value.read().decode()


def test_openais_client_gets_an_answer_in_its_format(server, repository):
    """Through the chat template, whole and as a stream."""
    options = FrontOptions(url=server.grpc, port=0)
    ask = {
        "model": "theirs",
        "messages": [{"role": "user", "content": "Name a city, as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}},
        "temperature": 0,
        "max_tokens": 40,
    }
    with (
        OpenAIFront(options) as front,
        openai.OpenAI(base_url=f"{front.url}/v1", api_key="-", timeout=120) as client,
    ):
        whole = client.chat.completions.create(**ask).choices[0].message.content
        events = client.chat.completions.create(**ask, stream=True)
        pieces = [event.choices[0].delta.content or "" for event in events]
    assert set(json.loads(whole)) == {"city", "large"}
    assert "".join(pieces) == whole


def test_a_client_that_goes_frees_everything(server):
    """The text is aborted within vLLM; its cache is free again."""
    events = ask(server, "theirs", "a", {**GREEDY, "max_tokens": 500})
    next(events)
    events.close()
    assert comes_true(lambda: metric(server, "ge_text_finished_total", reason="cancelled"))
    assert metric(server, "ge_text_generated_tokens_total") > 0
    assert comes_true(lambda: metric(server, "ge_text_running") == 0)


@pytest.mark.parametrize("victim", ["executor", "VLLM::EngineCor"])
def test_streams_go_on_after_a_death(server, victim):
    """The executor's or vLLM's: the text goes on where it was, and of the dead nothing is left."""
    long = {**GREEDY, "max_tokens": 60}
    whole = text(server, "theirs", PROMPTS[2], long)
    events = ask(server, "theirs", PROMPTS[2], long)
    seen = "".join(next(events)["text_output"] for _ in range(3))
    executor = executor_of_vllm(server)
    all_of_it = [executor, *executor.children(recursive=True)]
    named = {process.name(): process for process in all_of_it}
    named.get(victim, executor).kill()
    seen += "".join(event["text_output"] for event in events)
    assert seen == whole
    assert not any(map(lives, all_of_it))
    assert comes_true(lambda: metric(server, "ge_executor_restarts_total") > 0)
