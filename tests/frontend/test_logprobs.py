"""Log-probabilities."""

import json
import math

from ge_openai.logprobs import (
    TokenLogprob,
    chat_logprobs,
    completion_logprobs,
    read_logprobs,
)

TEXT = json.dumps(
    [
        {
            "7": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
            "8": {"logprob": -1.5, "rank": 2, "decoded_token": "b"},
        },
        {
            "8": {"logprob": -0.25, "rank": 1, "decoded_token": "b"},
            "9": {"logprob": -math.inf, "rank": None, "decoded_token": "\ufffd"},
        },
    ]
)
TOKENS = (
    TokenLogprob(token="a", logprob=-0.5, top=(("a", -0.5), ("b", -1.5))),
    TokenLogprob(token="\ufffd", logprob=-9999.0, top=(("b", -0.25),)),
)


def test_the_drawn_token_is_told_apart():
    """It may be none of the best; JSON has no infinity."""
    assert read_logprobs(TEXT, [7, 9]) == TOKENS
    assert read_logprobs("null", [7]) == ()


def test_without_ids_the_first_of_each_is_the_drawn_one():
    """Whatever its rank."""
    drawn = {"9": {"logprob": -2, "rank": 5, "decoded_token": "c"}}
    best = {"8": {"logprob": -1, "rank": 1, "decoded_token": "b"}}
    (token,) = read_logprobs(json.dumps([drawn | best]))
    assert token == TokenLogprob(token="c", logprob=-2, top=(("b", -1), ("c", -2)))
    assert read_logprobs("null") == ()


def test_parts_of_a_letter_have_their_bytes():
    """Of the drawn token and of the best ones, each where the server tells them."""
    half = {"logprob": -0.5, "rank": 1, "decoded_token": "\ufffd", "bytes": [228]}
    other = {"logprob": -1.5, "rank": 2, "decoded_token": "b"}
    (told,) = read_logprobs(json.dumps([{"7": half, "8": other}]), [7])
    (entry,) = chat_logprobs([told], 2)["content"]
    assert entry["bytes"] == [228]
    assert [best["bytes"] for best in entry["top_logprobs"]] == [[228], [98]]


def test_the_form_of_completions():
    """Offsets go on from the letters before; the drawn token is among the best."""
    assert completion_logprobs(TOKENS, 10) == {
        "tokens": ["a", "\ufffd"],
        "token_logprobs": [-0.5, -9999.0],
        "top_logprobs": [{"a": -0.5, "b": -1.5}, {"b": -0.25, "\ufffd": -9999.0}],
        "text_offset": [10, 11],
    }


def test_the_form_of_chats():
    """So many of the best as were asked for; bytes where the text has them."""
    first, second = chat_logprobs(TOKENS, 1)["content"]
    assert first == {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}],
    }
    assert second["bytes"] is None
