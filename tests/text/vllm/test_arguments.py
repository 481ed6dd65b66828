"""Parameters become vLLM's arguments, in the words of its command line."""

import importlib
from pathlib import Path

import pytest

from ge_backend.errors import ConfigError


@pytest.fixture
def engine_arguments(async_llm):
    return importlib.import_module("ge_text.vllm.arguments").engine_arguments


def test_arguments_are_passed_on(engine_arguments):
    """Values and switches, with dashes or underscores; the folder and the precision are ours."""
    options = {"max_model_len": "512", "enforce-eager": "true"}
    found = engine_arguments(Path("/models/1"), "bf16", "writer", options)
    assert (found.model, found.dtype, found.served_model_name) == (
        "/models/1",
        "bfloat16",
        "writer",
    )
    assert (found.max_model_len, found.enforce_eager, found.skip_tokenizer_init) == (
        512,
        True,
        True,
    )
    off = engine_arguments(Path("/m"), "origin", "writer", {"enforce_eager": "false"})
    assert (off.dtype, off.enforce_eager) == ("auto", False)
    assert engine_arguments(Path("/m"), "fp32", "writer", {}).dtype == "float32"


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("max_model_len", "512", "--max-model-len=512"),
        ("enforce_eager", "false", "--no-enforce-eager"),
        ("speculative_config.num_tokens", "3", "--speculative-config.num_tokens=3"),
        ("a-b.c_d.e_f", "x=y", "--a-b.c_d.e_f=x=y"),
        ("a_b.no_c", "true", "--a-b.no_c=true"),
        ("a_b.no_c", "false", "--a-b.no_c=false"),
    ],
)
def test_a_nested_setting_keeps_its_name_and_value(
    engine_arguments, monkeypatch, option, value, word
):
    """What stands behind the dot is a key to vLLM, and a word without = takes the next one."""

    def parse(_, words):
        raise ConfigError(" ".join(words))

    monkeypatch.setattr(
        importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser,
        "parse_args",
        parse,
    )
    with pytest.raises(ConfigError) as caught:
        engine_arguments(Path("/m"), "origin", "writer", {option: value})
    assert str(caught.value).split()[-1] == word


def test_vllm_has_a_tokenizer_of_its_own_where_the_folder_has_all_of_it(tmp_path, engine_arguments):
    """Then it can keep to structures; with less it would have to guess, and goes without."""
    for name, skipped in (("tokenizer.json", True), ("tokenizer_config.json", False)):
        (tmp_path / name).touch()
        found = engine_arguments(tmp_path, "origin", "writer", {})
        assert found.skip_tokenizer_init is skipped


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stone": "1"}, "unrecognized arguments: --stone=1"),
        ({"max_model_len": "long"}, "max-model-len"),
        ({"enforce_eager": "perhaps"}, "enforce-eager"),
        ({"served_model_name": "other"}, "'vllm.served_model_name' is set by the backend"),
        ({"help": "true"}, "no help"),
    ],
)
def test_what_vllm_does_not_know_is_refused_by_name(engine_arguments, capsys, options, message):
    """The process goes on, with an error that names the parameter."""
    with pytest.raises(ConfigError, match=message):
        engine_arguments(Path("/m"), "origin", "writer", options)
