"""Choices of completions and chats."""

from ge_backend.openai.forms import ChatForm, CompletionForm
from ge_backend.openai.logprobs import TokenLogprob
from ge_backend.openai.text_call import Piece

TOKEN = TokenLogprob(token="a", logprob=-1.0, top=(("a", -1.0),))
PIECE = Piece(text="a", tokens=1, logprobs=(TOKEN,), finish="stop")


def test_a_completion_is_text():
    """The end is null while it goes on, log-probabilities unless asked for."""
    form = CompletionForm(None)
    assert form.first(0) is None
    assert form.choice(1, PIECE) == {
        "index": 1,
        "text": "a",
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert form.delta(0, Piece(text="a", tokens=1), 0)["finish_reason"] is None
    assert CompletionForm(1).delta(0, PIECE, 4)["logprobs"]["text_offset"] == [4]


def test_a_chat_is_a_message():
    """Whole, or its role and then its text."""
    form = ChatForm(0)
    assert form.first(2)["delta"] == {"role": "assistant", "content": ""}
    whole = form.choice(0, PIECE)
    assert whole["message"] == {"role": "assistant", "content": "a", "refusal": None}
    assert whole["logprobs"]["content"][0]["top_logprobs"] == []
    delta = form.delta(0, Piece(text="", tokens=1, finish="length"), 0)
    assert (delta["delta"], delta["finish_reason"], delta["logprobs"]) == ({}, "length", None)
