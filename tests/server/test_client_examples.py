"""Every example against exactly the server that `make serve` starts, ports and log aside."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from ge_tools.tritonserver import free_ports

ROOT = Path(__file__).resolve().parents[2]
SHARED = "connection.py"
EXAMPLES = sorted(
    set((ROOT / "client_examples").glob("*.py")) - {ROOT / "client_examples" / SHARED}
)
# gRPC alone has streams, and spreads requests.
GRPC_ONLY = ("chat.py", "generate.py", "round_robin.py", "streaming_sequence.py", "structured.py")
# It asks the front.
OPENAI_ONLY = ("rerank.py",)
# What model_repository/make.py draws its tables from.
SEED, VOCABULARY = 20_240_601, 1_000


@dataclass(frozen=True)
class Served:
    """Where a server is: `host:port` of HTTP, gRPC and OpenAI's API, the URL of its metrics."""

    http: str
    grpc: str
    metrics: str
    openai: str


def serve_line(models: Path, *arguments: str) -> str:
    """Return what `make serve` runs at last, with this interpreter, as a line for the shell."""
    command = ["make", "-n", "serve", f"VENV={sys.prefix}", f"MODELS={models}"]
    command.append(f"ARGS={shlex.join(arguments)}")
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return "exec " + done.stdout[done.stdout.index(f"{sys.prefix}/bin/python -m ge_tools") :]


@pytest.fixture(scope="module")
def server(installation, made_models, tmp_path_factory, server_logs) -> Iterator[Served]:
    """The server of `make serve`, on free ports."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics", "openai")]
    line = serve_line(made_models, *ports, "--exit-timeout=20", f"--log-file={log}")
    with subprocess.Popen(
        ["bash", "-c", line], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as made:
        try:
            said = [made.stdout.readline().split() for _ in range(5)]
            server_logs["the server of make serve"] = log
            assert said[0][:2] == ["ge-backend:", "ready"], log.read_text()
            where = dict(said[1:])
            http, front = (where[name].removeprefix("http://") for name in ("http", "openai"))
            yield Served(http, where["grpc"], where["metrics"], front.removesuffix("/v1"))
        finally:
            server_logs.clear()
            made.send_signal(signal.SIGTERM)
            assert made.wait(timeout=60) == 0


@pytest.fixture(params=["grpc", "http"])
def protocol(request) -> str:
    """Both protocols, one after the other."""
    return request.param


@pytest.fixture
def connection(server, protocol) -> list[str]:
    """The arguments that every example takes."""
    return address(server, protocol)


def address(server: Served, protocol: str) -> list[str]:
    """Return the arguments that send an example to this server."""
    return ["--protocol", protocol, "--url", getattr(server, protocol)]


def run(name: str, *arguments: str) -> str:
    """Return what an example prints; its warnings and errors fail the test."""
    command = [sys.executable, str(ROOT / "client_examples" / name), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(columns: int) -> np.ndarray:
    return np.random.default_rng(SEED).standard_normal((VOCABULARY, columns)).astype(np.float32)


def ask(server: Served, model: str, output: str, **tensors: np.ndarray) -> np.ndarray:
    """Return one output for numpy inputs; their names and types are the model's."""
    types = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "object": "BYTES"}
    inputs = []
    for name, array in tensors.items():
        inputs.append(grpcclient.InferInput(name, array.shape, types[str(array.dtype)]))
        inputs[-1].set_data_from_numpy(array)
    with grpcclient.InferenceServerClient(server.grpc) as client:
        return client.infer(model, inputs).as_numpy(output)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_run_and_listed(example):
    """A test here runs it, README.md of the folder has it, and it says where its options go."""
    assert f'"{example.name}"' in Path(__file__).read_text()
    assert f"]({example.name})" in (example.parent / "README.md").read_text()
    assert {"--url", "--protocol"} <= set(re.findall(r"--\w+", run(example.name, "--help")))


def test_every_model_of_the_repository_is_ready(server):
    """The folder's configurations, the script that makes their files, and the server agree."""
    names = {path.parent.name for path in (ROOT / "model_repository").glob("*/config.pbtxt")}

    with grpcclient.InferenceServerClient(server.grpc) as client:
        index = client.get_model_repository_index(as_json=True)["models"]
    assert {model["name"] for model in index if model.get("state") == "READY"} == names


def refused(name: str, *arguments: str) -> str:
    """Return the line that an example ends with."""
    command = [sys.executable, str(ROOT / "client_examples" / name), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_a_server_that_is_not_there_is_one_line(example, protocol):
    """It says what to start, and with which option to say where it is."""
    if example.name in GRPC_ONLY and protocol == "http":
        pytest.skip("it needs gRPC")
    if example.name in OPENAI_ONLY:
        protocol = "openai"
    line = refused(example.name, "--protocol", protocol, "--url", f"localhost:{free_ports(1)[0]}")
    if example.name == "cuda_shared_memory.py" and "no CUDA shared memory here" in line:
        return
    assert "--metrics-url" in line if example.name == "metrics.py" else "make serve" in line


def test_another_server_than_the_examples_need_is_one_line(triton_server, tmp_path, protocol):
    """Without the model, and without permission to load it: what to start it with."""
    server = triton_server(tmp_path)

    assert "make serve" in refused("simple_infer.py", *address(server, protocol))
    said = refused("model_control.py", *address(server, protocol))
    assert "--model-control-mode=explicit --load-model=*" in said


def test_an_address_is_taken_as_the_server_prints_it(server):
    """With the scheme that `ge-backend serve` puts before HTTP's."""
    assert run("simple_infer.py", "--protocol", "http", "--url", f"http://{server.http}")


def test_metrics_of_another_server_are_one_line(server, triton_server, tmp_path):
    """They counted nothing of the request."""
    other = triton_server(tmp_path)
    said = refused("metrics.py", "--url", server.grpc, "--metrics-url", other.metrics)
    assert "it is another server's; give --metrics-url" in said


def test_simple_infer_prints_sum_and_difference(connection):
    """0..15 plus and minus one."""
    lines = run("simple_infer.py", *connection).replace("\n  ", " ").splitlines()
    found = {line.split()[0]: [float(x) for x in re.findall(r"-?\d+\.", line)] for line in lines}

    assert found["sum"] == [float(number + 1) for number in range(16)]
    assert found["difference"] == [float(number - 1) for number in range(16)]


def test_round_robin_asks_several_servers(server):
    """Of two addresses one is nobody's: the other answers all."""
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    said = run("round_robin.py", "--url", f"{server.grpc},{nobody}")
    assert "10 answers, all equal" in said


def test_async_many_gets_an_answer_for_each_of_many_in_flight(connection):
    """The first answers are the means that numpy computes from the same table."""
    printed = run("async_many.py", *connection, "--requests", "60", "--in-flight", "16")

    random = np.random.default_rng(7)
    texts = [random.integers(0, 1000, random.integers(1, 100)) for _ in range(60)]
    norms = [np.linalg.norm(table(16)[ids].mean(axis=0)) for ids in texts[:5]]
    assert printed.startswith("60 answers")
    assert re.findall(r"\d\.\d{4}", printed) == [f"{norm:.4f}" for norm in norms]


def test_ragged_batch_answers_every_shape_as_if_it_were_alone(connection):
    """Each output is as long as its input, and equal to what the request gets by itself."""
    lines = run("ragged_batch.py", *connection).splitlines()

    assert [line.rsplit(",", 1)[0] for line in lines] == [
        "sent [2, 3], got [2, 3, 4]",
        "sent [1, 17], got [1, 17, 4]",
        "sent [3, 1], got [3, 1, 4]",
        "sent [1, 60], got [1, 60, 4]",
        "sent [4, 9], got [4, 9, 4]",
    ]
    assert [line.split()[-1] for line in lines] == ["0.0e+00"] * 5


def test_health_and_metadata_shows_what_the_model_takes(connection):
    """The mask is the backend's business, so a client does not see it."""
    printed = run("health_and_metadata.py", *connection)

    assert re.findall(r"(?:live|ready) +(\w+)", printed) == ["True"] * 3
    assert "input  input_ids: INT64 [-1, -1]" in printed
    assert "output mean: FP32 [-1, 16]" in printed
    assert "buckets.rows = 1,4,16" in printed
    assert "attention_mask" not in printed


def test_metrics_shows_what_one_request_changed(server, connection):
    """One request of eleven tokens is one batch and one sub-batch."""
    printed = run("metrics.py", *connection, "--metrics-url", server.metrics).splitlines()

    assert "ge_requests_total: +1" in printed
    assert "ge_batches_total: +1" in printed
    assert "ge_elements_real_total: +11" in printed
    assert sum(line.startswith("ge_sub_batches_total ") for line in printed) == 1


def test_system_shared_memory_reads_every_answer_from_the_region(connection):
    """Texts of all lengths; the scores are those that numpy takes from the same table."""
    lines = run("system_shared_memory.py", *connection, "--requests", "6").splitlines()

    random = np.random.default_rng(3)
    texts = [random.integers(0, 1000, random.integers(1, 64)) for _ in range(6)]
    best = [" ".join(map(str, table(4)[ids].argmax(axis=1)[:8])) for ids in texts]
    assert lines == [
        f"{len(ids)} tokens, best scores: {scores}" for ids, scores in zip(texts, best, strict=True)
    ]


@pytest.mark.cuda
def test_cuda_shared_memory_prints_sum_and_difference(connection):
    """0..15 plus and minus one, through a GPU's memory; without a GPU it says so."""
    command = [sys.executable, str(ROOT / "client_examples" / "cuda_shared_memory.py")]
    command += connection
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    if "no CUDA shared memory here" in done.stderr:
        assert done.returncode == 1
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    numbers = [float(x) for x in re.findall(r"-?\d+\.", done.stdout)]
    assert numbers == [*map(float, range(1, 17)), *map(float, range(-1, 15))]


def test_model_control_changes_a_model_while_the_server_runs(connection):
    """With one bucket more a longer text is taken; unloaded, the model is not there; then it is."""
    lines = run("model_control.py", *connection).splitlines()

    assert lines[0] == "ready: token_scores version 1"
    assert "refused: axis 'sequence' is 300, the largest bucket is 128" in lines[1]
    assert lines[2] == "with a larger bucket: scores of shape (1, 300, 4)"
    assert "unloaded: refused: Request for unknown model" in lines[3]
    assert "loaded again: refused: axis 'sequence' is 300" in lines[4]


def test_text_embedding_finds_the_texts_that_are_alike(connection):
    """Of two texts about each of three things the other one is the nearest."""
    lines = run("text_embedding.py", *connection).splitlines()

    found = dict(
        re.fullmatch(r"'(.*)' is most like '(.*)' \(.*\)", line).groups() for line in lines
    )
    assert len(found) == 6
    assert all(found[found[text]] == text for text in found)


def test_one_text_alone_is_like_no_other(server):
    """It was called most like itself."""
    assert refused("text_embedding.py", "--url", server.grpc, "rain") == (
        "expected two texts at least, or none for the example's own"
    )


def test_text_classifier_names_the_labels(connection):
    """Texts of very different lengths, all at once; the names come from the server."""
    printed = run("text_classifier.py", *connection)

    expected = ["sport", "food", "weather", "weather", "food", "sport"]
    assert re.findall(r"(?m)^(\w+) \(\d\.\d\d\): ", printed) == expected


def test_rerank_puts_the_documents_in_order(server):
    """Those that speak of the weather before the others, with their scores between 0 and 1."""
    where = address(server, "openai")
    lines = run("rerank.py", *where).splitlines()
    told = [re.fullmatch(r"(\d\.\d\d): (.*)", line).groups() for line in lines]
    assert [float(score) for score, _ in told] == sorted((float(s) for s, _ in told), reverse=True)
    weather = {"The storm brought rain, thunder and wind", "Heavy rain is expected tomorrow"}
    assert {text for _, text in told[:2]} == weather
    assert len(told) == 4
    assert "`make serve` serves text_ranker" in refused("rerank.py", *where, "--model", "add_sub")


def test_image_classifier_names_what_is_drawn(connection):
    """The files are PNG, each of another size."""
    lines = run("image_classifier.py", *connection).splitlines()

    found = [re.fullmatch(r"a drawn (\w+) \(\d+ bytes\): (\w+) \(.*\)", line) for line in lines]
    assert [match[1] for match in found] == [match[2] for match in found]
    assert len(found) == 3


def test_streaming_sequence_finds_the_odd_value_of_every_signal(server):
    """Each signal is a sequence; whoever shares its batches, its first high score is where it is."""
    printed = run("streaming_sequence.py", "--url", server.grpc, "--signals", "8", "--values", "40")

    found = re.findall(r"signal (\d+): value (\d+) is odd .*, truly (\d+)", printed)
    assert [int(number) for number, _, _ in found] == list(range(8))
    assert [place for _, place, _ in found] == [truly for _, _, truly in found]


def test_the_accumulator_adds_up_what_a_sequence_sends(server):
    """Over HTTP as well, and for ids that are texts."""
    value = httpclient.InferInput("INPUT", [1, 1], "FP32")
    sums = []
    with httpclient.InferenceServerClient(server.http) as client:
        for index, number in enumerate((5, 7, -2)):
            value.set_data_from_numpy(np.array([[number]], np.float32))
            flags = {"sequence_start": index == 0, "sequence_end": index == 2}
            answer = client.infer("accumulator", [value], sequence_id="a text", **flags)
            sums.append(answer.as_numpy("OUTPUT").item())
    assert sums == [5, 12, 10]


def examples_in(page: str) -> list[tuple[str, str]]:
    """Return (command, what it prints) of the consoles on a page of the documentation."""
    consoles = re.findall(r"(?ms)^```console\n\$ (.*?)^```$", (ROOT / "docs" / page).read_text())
    return [tuple(console.split("\n", 1)) for console in consoles]


@pytest.mark.parametrize(("command", "printed"), examples_in("ensembles.md"))
def test_an_example_prints_what_the_page_says(connection, command, printed):
    """Word for word, but for the last digits of scores."""
    program, script, *arguments = shlex.split(command)
    assert program == "python"

    found = run(script.removeprefix("client_examples/"), *connection, *arguments)

    scores = r"\d\.\d\d"
    assert re.sub(scores, "#", found) == re.sub(scores, "#", printed)


@pytest.mark.parametrize(("model", "dtype"), [("add_sub", np.float32), ("add_sub_int32", np.int32)])
def test_the_add_sub_models_differ_in_type_alone(server, model, dtype):
    """A client batch of three comes back as three rows of the input's type."""
    left = np.arange(48, dtype=dtype).reshape(3, 16)
    right = np.full((3, 16), 5, dtype)

    found = ask(server, model, "OUTPUT1", INPUT0=left, INPUT1=right)

    assert found.dtype == dtype
    assert np.array_equal(found, left - right)


def test_the_echo_model_is_completed_from_its_file_and_keeps_bytes(server):
    """Its configuration names the backend only; strings come back whole, empty ones too."""
    text = np.array([["", "é", "a" * 1000], ["b", "c\0d", "e"]], dtype=object)

    found = ask(server, "echo_bytes", "echo", text=text)

    assert [[word.decode() for word in row] for row in found] == text.tolist()


def test_the_torch_model_sums_real_values_only(server):
    """Padding is a million per element, so one padded element in the sum would show."""
    random = np.random.default_rng(1)
    for rows, length in ((1, 1), (2, 7), (3, 100), (1, 300)):
        values = random.standard_normal((rows, length)).astype(np.float32)
        found = ask(server, "lengths_sum", "total", values=values)

        assert np.allclose(found[:, 0], values.sum(axis=1), atol=1e-3)


@pytest.mark.parametrize(
    ("prompt", "rest"),
    [
        ("once upon a time", " a small boat left the harbour before the sun was up."),
        ("l'été fut", " long, puis vint l'hiver et ses étoiles ❄."),
    ],
)
def test_the_tiny_writer_tells_its_tales(server, prompt, rest):
    """A checkpoint folder and one line of configuration; the text ends where the tale does."""
    body = {
        "text_input": prompt,
        "max_tokens": 200,
        "temperature": 0,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
    }
    url = f"http://{server.http}/v2/models/tiny_writer/generate"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
        said = json.loads(answer.read())
    assert (said["text_output"], said["finish_reason"]) == (rest, "stop")


def test_generate_goes_on_with_several_prompts_at_once(server):
    """Each tale is told to its end; with `--stream` the first one alone, piece by piece."""
    lines = run("generate.py", "--url", server.grpc).splitlines()
    assert lines[0] == (
        "'once upon a time' goes on: ' a small boat left the harbour before the sun was up.'"
    )
    assert len(lines) == 3
    told = run("generate.py", "--url", server.grpc, "--stream", "--max-tokens", "5")
    assert told == " a sm\n"
    (likeliest,) = run(
        "generate.py", "--url", server.grpc, "--beam-width", "3", "once upon a time"
    ).splitlines()
    assert likeliest == lines[0]


def test_structured_answers_are_in_their_form(server):
    """A model that knows five tales answers by choice, as a date, and in JSON of any lines."""
    told = run("structured.py", "--url", server.grpc)
    said = dict(re.findall(r"^( *\w+): (.*?)(?=\n *\w+: |\Z)", told, re.MULTILINE | re.DOTALL))
    assert said["guided_choice"] in {"yes", "no", "perhaps"}
    assert re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", said["guided_regex"])
    found = json.loads(said["guided_json"])
    assert (set(found), 1 <= found["count"] <= 99) == ({"name", "count", "colour"}, True)
    assert said["  parsed"].strip() == str(found)


def test_chat_answers_line_by_line(server):
    """Without a template a line is the prompt."""
    told = run("chat.py", "--url", server.grpc, "--say", "the king", "--say", "the sea was")
    assert told.splitlines() == [
        " had three daughters, and none of them could keep a secret.",
        " calm that day, and the gulls slept upon the waves.",
    ]


def test_chat_ends_with_its_input(server):
    """As with an empty line: ^D, or the end of a file."""
    command = [sys.executable, str(ROOT / "client_examples" / "chat.py"), "--url", server.grpc]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, input="the king\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "three daughters" in done.stdout


def test_chat_makes_prompts_by_the_checkpoints_template(server, tmp_path):
    """The template sees the whole chat, and the special tokens by their names."""
    config = {"chat_template": "{{ bos_token }}{{ messages[-1].content }}"}
    for bos in ("the ", {"__type": "AddedToken", "content": "the ", "lstrip": False}):
        written = json.dumps({**config, "bos_token": bos})
        (tmp_path / "tokenizer_config.json").write_text(written)
        told = run("chat.py", "--url", server.grpc, "--checkpoint", str(tmp_path), "--say", "king")
        assert told == " had three daughters, and none of them could keep a secret.\n"
