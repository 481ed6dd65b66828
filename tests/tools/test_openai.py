import json
import socket
import sys
from typing import ClassVar

import pytest

from ge_backend.errors import ConfigError
from ge_openai import front
from ge_openai.options import FrontOptions
from ge_openai.template_folders import template_in
from ge_tools import openai, serve
from ge_tools.main import build_parser, main


class RecordedFront:
    """Stands for `OpenAIFront`: remembers its options, ends at once."""

    made: ClassVar = []

    def __init__(self, options):
        self.made.append(options)
        self.url = "http://h:9"
        self.ran = False

    def run(self):
        self.ran = True


@pytest.fixture
def fronts(monkeypatch):
    """The options of fronts that were opened."""
    monkeypatch.setattr(RecordedFront, "made", [])
    monkeypatch.setattr(openai, "open_front", RecordedFront)
    return RecordedFront.made


def test_options_become_those_of_the_api(fronts, tmp_path, capsys):
    """It says where it is, for `base_url`."""
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    arguments = [
        "openai", "--url", "h:1", "--metrics-url", "http://h:2/metrics",
        "--tokenizer", f"m={tmp_path}", "--host", "0.0.0.0", "--port", "3", "--api-key-file", str(keys), "--max-body", "2KiB", "--max-prompt", "1KiB",
    ]  # fmt: skip
    assert main(arguments) == 0
    assert fronts == [
        FrontOptions(
            url="h:1",
            metrics="http://h:2/metrics",
            tokenizers={"m": tmp_path},
            host="0.0.0.0",
            port=3,
            keys=("secret",),
            max_body_bytes=2048,
            max_prompt_bytes=1024,
        )
    ]
    assert capsys.readouterr().out == "ge-backend: OpenAI's API at http://h:9/v1\n"


@pytest.mark.parametrize("url", ["10.0.0.1:8001", "[::1]:8001", "dns:///server:8001", "unix:/s"])
def test_whatever_grpc_connects_to_may_be_the_server(fronts, url):
    """A port says of a host that it is meant, and a scheme of gRPC's the rest."""
    assert main(["openai", "--url", url]) == 0
    assert [options.url for options in fronts] == [url]


def test_tokenizers_are_read_as_the_backend_does(monkeypatch, tmp_path):
    """With the tokens that the files beside them name; what is wrong with those is told."""
    opened: ClassVar = []
    monkeypatch.setattr(front, "OpenAIFront", opened.append)
    openai.open_front(FrontOptions(url=""))
    beside = {"chat_template": "x", "added_tokens_decoder": {"2": {"content": "<a>"}}}
    vocabulary = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary))
    (tmp_path / "config.json").write_text('{"vocab_size": 3}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(beside))
    read = opened[0].read_tokenizer
    assert template_in(tmp_path, read).tokens.ids == {"<a>": 2}
    assert template_in(tmp_path).tokens.ids == {}
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": 7}')
    with pytest.raises(ValueError, match="added_tokens_decoder has to be an object"):
        read(tmp_path / "tokenizer.json")


def test_an_interrupt_is_its_ordinary_end(fronts, monkeypatch):
    """It has served what was under way by then."""

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordedFront, "run", interrupted)
    assert main(["openai"]) == 0


def test_without_options_it_has_its_own_defaults(fronts):
    """Those of the command are those of the options."""
    main(["openai"])
    assert fronts == [FrontOptions(url="localhost:8001", metrics="http://localhost:8002/metrics")]


def test_serve_knows_where_its_server_is(monkeypatch, tmp_path):
    """Only who may ask, and how much, is said by options."""
    made: ClassVar = []
    monkeypatch.setattr(serve, "open_front", made.append)
    arguments = ["serve", "--model-repository", str(tmp_path), "--openai-port", "0"]
    parsed = build_parser().parse_args([*arguments, "--max-prompt", "5"])
    server = type("Server", (), {"grpc": "h:2", "metrics": "http://h:3/metrics"})()
    server.options = serve._options(parsed)
    serve._front(parsed, server)
    assert made == [
        FrontOptions(
            url="h:2",
            metrics="http://h:3/metrics",
            port=0,
            max_prompt_bytes=5,
        )
    ]


@pytest.mark.parametrize("name", ["http", "grpc", "metrics"])
def test_a_port_of_the_server_is_refused_at_once(name, tmp_path, monkeypatch):
    """The API would else find out when the models are loaded; vLLM's port is Triton's 8000."""
    monkeypatch.setattr(serve, "open_front", lambda options: pytest.fail("it was opened"))
    ports = [f"--{name}-port", "7", "--openai-port", "7"]
    parsed = build_parser().parse_args(["serve", "--model-repository", str(tmp_path), *ports])
    server = type("Server", (), {"options": serve._options(parsed)})()
    with pytest.raises(ConfigError, match="port 7 is the server's; choose another"):
        serve._front(parsed, server)


@pytest.mark.parametrize(
    "given",
    [
        ["--max-body", "much"],
        ["--max-body", "0"],
        ["--max-prompt", "0.2B"],
        ["--url", "http://localhost:8001"],
        ["--url", "localhost"],
        ["--metrics-url", "localhost:8002/metrics"],
        ["--api-key-file", "/nowhere/at/all"],
    ],
)
def test_what_is_wrong_is_told_before_anything_starts(fronts, capsys, given):
    """One line, and exit code 2."""
    assert main(["openai", *given]) == 2
    assert capsys.readouterr().err.startswith("ge-backend: ")
    assert fronts == []


@pytest.mark.parametrize("given", ["m", "m=", "m=/nowhere/at/all", "=/"])
def test_a_tokenizer_is_a_models_folder(fronts, capsys, given):
    """One that is there."""
    with pytest.raises(SystemExit):
        main(["openai", "--tokenizer", given])
    assert "is no MODEL=DIR of a folder that is there" in capsys.readouterr().err
    assert fronts == []


def test_a_port_in_use_is_told(capsys):
    """With its number."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["openai", "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "99999"])
def test_a_port_that_is_none_is_told(capsys, port):
    """As one that is in use."""
    assert main(["openai", "--port", port]) == 2
    assert f"port {port} of 127.0.0.1 cannot be had" in capsys.readouterr().err


def test_a_missing_library_says_how_to_get_it(monkeypatch, capsys):
    """As one line that can be copied."""
    monkeypatch.setitem(sys.modules, "ge_openai.front", None)
    assert main(["openai"]) == 2
    assert "pip install 'triton-ge-backend[openai]'" in capsys.readouterr().err
