"""Calls as tensors, responses as pieces."""

import json

import numpy as np
import pytest

from ge_openai.text_call import (
    Piece,
    TextCall,
    joined,
    read_pieces,
    text_inputs,
    text_outputs,
)


def call(**given):
    return TextCall(
        **{
            "model": "m",
            "prompt": "a b",
            "sampling": {"n": 2},
            "stream": True,
            "logprobs": False,
            "counts": False,
            **given,
        }
    )


def test_a_prompt_becomes_tensors():
    """The answer never begins with the prompt; parameters are JSON."""
    tensors = text_inputs(call())
    assert tensors["text_input"].tolist() == [b"a b"]
    assert json.loads(tensors["sampling_parameters"][0]) == {"n": 2}
    assert tensors["stream"].tolist() == tensors["exclude_input_in_output"].tolist() == [True]
    assert text_outputs(call()) == ("text_output", "finish_reason")
    assert {name for name in tensors if name.startswith("return_")} == {"return_finish_reason"}


@pytest.mark.parametrize("given", [{"counts": True}, {"logprobs": True}])
def test_tokens_are_counted_where_somebody_wants_to_know(given):
    """For usage, and to tell whose log-probabilities are whose."""
    counts = {"num_input_tokens", "num_output_tokens"}
    assert counts < set(text_outputs(call(**given)))
    assert {f"return_{name}" for name in counts} < set(text_inputs(call(**given)))


def test_tokens_and_log_probabilities_are_asked_for():
    """Tokens in place of a text; which token was drawn is told by its id."""
    tensors = text_inputs(call(prompt=(3, 4), logprobs=True))
    assert tensors["input_ids"].tolist() == [3, 4]
    assert tensors["input_ids"].dtype == np.int64
    assert "text_input" not in tensors
    assert tensors["return_logprobs"].tolist() == [True]
    assert {"logprobs", "output_ids"} < set(text_outputs(call(logprobs=True)))


def test_a_prompt_goes_by_a_description():
    """What comes in its place says that the model was loaded anew."""
    tensors = text_inputs(call(described="7f"))
    assert tensors["description"].tolist() == [b"7f"]
    assert "description" in text_outputs(call(described="7f"))
    assert "description" not in {*text_inputs(call()), *text_outputs(call())}


def outputs(**given):
    return {
        "text_output": np.array([b"x", "ü".encode()], object),
        "finish_reason": np.array([b"None", b"stop"], object),
        "num_input_tokens": np.array([5], np.uint32),
        "num_output_tokens": np.array([1, 2], np.uint32),
        **given,
    }


def test_a_response_has_a_piece_per_sample():
    """With its own text, tokens and end; an empty last response has none."""
    assert read_pieces(outputs()) == [
        Piece(text="x", tokens=1, prompt_tokens=5),
        Piece(text="ü", tokens=2, finish="stop", prompt_tokens=5),
    ]
    assert read_pieces({}) == []
    uncounted = {name: each for name, each in outputs().items() if not name.startswith("num_")}
    assert read_pieces(uncounted)[1] == Piece(text="ü", finish="stop")


def test_ids_of_all_samples_come_behind_each_other():
    """Each sample's log-probabilities are of its own tokens."""
    texts = [
        json.dumps([{str(n): {"logprob": -n, "rank": None, "decoded_token": str(n)}} for n in ids])
        for ids in ([1], [2, 3])
    ]
    found = read_pieces(
        outputs(
            logprobs=np.array([text.encode() for text in texts], object),
            output_ids=np.array([1, 2, 3], np.int64),
        )
    )
    assert [[token.token for token in piece.logprobs] for piece in found] == [["1"], ["2", "3"]]
    with pytest.raises(KeyError):
        read_pieces(
            outputs(
                logprobs=np.array([text.encode() for text in texts], object),
                output_ids=np.array([1, 2, 4], np.int64),
            )
        )


def test_pieces_join():
    """Texts and tokens add up; the last piece's end counts."""
    pieces = [
        Piece(text="a", tokens=1, prompt_tokens=5),
        Piece(text="b", tokens=2, finish="length", prompt_tokens=5),
    ]
    assert joined(pieces) == Piece(text="ab", tokens=3, finish="length", prompt_tokens=5)
