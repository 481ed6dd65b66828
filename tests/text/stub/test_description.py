"""What a model says of itself."""

import json

import numpy as np
import pytest

from ge_backend.errors import OutOfMemory

FILES = {
    "tokenizer_config.json": '{"bos_token": "<s>"}',
    "chat_template.jinja": "ü",
    "additional_chat_templates/tool_use.jinja": "tools",
}


@pytest.fixture
def checkpoint(tmp_path):
    """A folder with a template, a tokenizer and files that are none of both."""
    (tmp_path / "additional_chat_templates").mkdir()
    for name, text in {**FILES, "README.md": "no"}.items():
        (tmp_path / name).write_text(text)
    tokens = [{"id": 7, "content": "<a>", "special": True}]
    tokenizer = {"model": {"vocab": {"x": 0, "<s>": 1}}, "added_tokens": tokens}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return tmp_path


def asked(pb_utils, described, outputs=("description", "text_output")):
    from ge_text.stub.requests import read_text_request

    given = {"text_input": "a", **({} if described is None else {"description": described})}
    tensors = [
        pb_utils.Tensor(name, np.array([text.encode()], object)) for name, text in given.items()
    ]
    request = pb_utils.InferenceRequest(tensors, outputs)
    request.parameters = lambda: "{}"
    return read_text_request(request)


def said(response):
    (tensor,) = response.output_tensors()
    assert tensor.name() == "description"
    return json.loads(tensor.as_numpy()[0])


def test_it_has_template_tokens_and_adapters(pb_utils, checkpoint):
    """Tokens as the model has them, with those that the files beside the tokenizer name."""
    from ge_text.stub.description import Description

    found = said(Description(checkpoint).answer(asked(pb_utils, "")))
    assert found["files"] == FILES
    assert {token["content"]: token["id"] for token in found["added_tokens"]} == {
        "<a>": 7,
        "<s>": 1,
    }
    assert found["adapters"] == []
    (checkpoint / "adapters" / "pirate").mkdir(parents=True)
    (checkpoint / "adapters" / "pirate" / "adapter_config.json").write_text("{}")
    made = Description(checkpoint)
    assert said(made.answer(asked(pb_utils, "")))["adapters"] == ["pirate"]
    (checkpoint / "multi_lora.json").write_text("{")  # who asks for one of its is told
    assert said(made.answer(asked(pb_utils, "")))["adapters"] == ["pirate"]


def test_adapters_are_said_alone_without_a_look_at_the_tokenizer(pb_utils, checkpoint):
    """A list of models asks for no more."""
    from ge_text.stub.description import Description

    (checkpoint / "multi_lora.json").write_text('{"pirate": "x"}')
    (checkpoint / "tokenizer.json").write_text("{")
    made = Description(checkpoint)
    assert said(made.answer(asked(pb_utils, "adapters"))) == {"adapters": ["pirate"]}


def test_a_request_that_goes_by_it_gets_its_text(pb_utils, checkpoint):
    """One that goes by another learns of this one; adapters make none of it another."""
    from ge_text.stub.description import Description

    made = Description(checkpoint)
    described = said(made.answer(asked(pb_utils, "")))["id"]
    assert made.answer(asked(pb_utils, described)) is None
    (checkpoint / "multi_lora.json").write_text('{"pirate": "x"}')
    assert made.answer(asked(pb_utils, described)) is None
    (checkpoint / "chat_template.jinja").write_text("another")
    assert made.answer(asked(pb_utils, described)) is None  # it is what was loaded
    assert said(Description(checkpoint).answer(asked(pb_utils, described)))["id"] != described


@pytest.mark.parametrize("another", ['{"added_tokens": []}', "garbage", "[]"])
def test_it_is_of_the_tokenizer_that_was_loaded(pb_utils, checkpoint, another):
    """Whatever lies in its place when the first request asks, and for all of a model's stubs."""
    from ge_text.stub.description import Description

    made, other = Description(checkpoint), Description(checkpoint)
    first = said(made.answer(asked(pb_utils, "")))
    (checkpoint / "tokenizer.json").write_text(another)
    assert [token["content"] for token in first["added_tokens"]] == ["<s>", "<a>"]
    assert said(other.answer(asked(pb_utils, ""))) == first
    assert other.answer(asked(pb_utils, first["id"])) is None


@pytest.mark.parametrize("text", ["garbage", "[]", "{}", "[" * 100_000])
def test_a_tokenizer_that_is_none_has_no_added_tokens(pb_utils, tmp_path, text, caplog):
    """An engine may do without it: the log says so, and requests are answered."""
    from ge_text.stub.description import Description

    (tmp_path / "tokenizer.json").write_text(text)
    assert said(Description(tmp_path).answer(asked(pb_utils, "")))["added_tokens"] == []
    assert ("cannot be read for clients" in caplog.text) == (text != "{}")


def test_it_is_not_sent_where_it_is_not_wanted(pb_utils, checkpoint):
    """A response with what its request does not name ends some stubs."""
    from ge_text.stub.description import Description

    answer = Description(checkpoint).answer(asked(pb_utils, "", ("text_output",)))
    assert answer.output_tensors() == []


def test_a_checkpoint_without_any_of_it_has_a_description(pb_utils, tmp_path):
    """So has one whose template is no text."""
    from ge_text.stub.description import Description

    found = said(Description(tmp_path).answer(asked(pb_utils, "")))
    assert (found["files"], found["added_tokens"], found["adapters"]) == ({}, [], [])
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    assert said(Description(tmp_path).answer(asked(pb_utils, "")))["files"] == {
        "chat_template.jinja": ""
    }


def test_a_request_says_what_it_goes_by(pb_utils):
    """Most go by none."""
    assert asked(pb_utils, None).described is None
    assert asked(pb_utils, "7").described == "7"


def test_it_needs_room_in_shared_memory(pb_utils, checkpoint, shared):
    """As a text does."""
    from ge_text.stub.description import Description

    shared(left=0, free=0)
    with pytest.raises(OutOfMemory):
        Description(checkpoint).answer(asked(pb_utils, ""))
