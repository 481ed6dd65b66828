"""Choices of completions and chats."""

from ge_openai.forms import ChatForm, CompletionForm
from ge_openai.logprobs import TokenLogprob
from ge_openai.text_call import Piece
from ge_openai.tool_calls import NamedCall, TaggedCalls

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
    (delta,) = form.deltas(0, Piece(text="a", tokens=1), 0)
    assert delta["finish_reason"] is None
    (delta,) = CompletionForm(1).deltas(0, PIECE, 4)
    assert delta["logprobs"]["text_offset"] == [4]
    assert form.deltas(0, Piece(text="", tokens=1), 0) == []


def test_a_chat_is_a_message():
    """Whole, or its role and then its text."""
    form = ChatForm(0)
    assert form.first(2)["delta"] == {"role": "assistant", "content": ""}
    whole = form.choice(0, PIECE)
    assert whole["message"] == {"role": "assistant", "content": "a", "refusal": None}
    assert whole["logprobs"]["content"][0]["top_logprobs"] == []
    (delta,) = form.deltas(0, Piece(text="", tokens=1, finish="length"), 0)
    assert (delta["delta"], delta["finish_reason"], delta["logprobs"]) == ({}, "length", None)


def test_a_chats_end_is_an_event_of_its_own():
    """As with OpenAI, whose client tells only then that a call is complete."""
    named = ChatForm(None, lambda: NamedCall("f"))
    for form, text, reason in (
        (ChatForm(0), "a", "stop"),
        (ChatForm(None, TaggedCalls), CALL, "tool_calls"),
        (named, "{}", "stop"),
    ):
        piece = Piece(text=text, tokens=1, logprobs=(TOKEN,), finish="stop")
        new, end = form.deltas(0, piece, 0)
        assert new["delta"]
        assert new["finish_reason"] is None
        assert (end["delta"], end["logprobs"], end["finish_reason"]) == ({}, None, reason)


CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def test_calls_are_apart_from_a_chats_text():
    """Each with an id of its own; the content is null where there is nothing else."""
    form = ChatForm(None, TaggedCalls)
    whole = form.choice(0, Piece(text=CALL + CALL, tokens=9, finish="stop"))
    calls = whole["message"]["tool_calls"]
    assert (whole["message"]["content"], whole["finish_reason"]) == (None, "tool_calls")
    assert [call["function"] for call in calls] == [{"name": "f", "arguments": '{"a": 1}'}] * 2
    assert len({call["id"] for call in calls}) == 2
    # Others are refused by the templates of Mistral's once a client sends the call back.
    assert all(len(call["id"]) == 9 and call["id"].isalnum() for call in calls)
    text = form.choice(1, Piece(text="no", tokens=1, finish="stop"))
    assert (text["message"]["content"], text["finish_reason"]) == ("no", "stop")
    assert "tool_calls" not in text["message"]


def test_calls_are_streamed_when_they_are_complete():
    """Numbered in their order; a piece of one is no event."""
    form = ChatForm(None, TaggedCalls)
    pieces = ("so:", CALL[:20], CALL[20:] + "\n", CALL)
    text, nothing, *calls = (form.deltas(0, Piece(text=text, tokens=1), 0) for text in pieces)
    assert [delta["delta"] for delta in text] == [{"content": "so:"}]
    assert nothing == []
    assert [delta["delta"]["tool_calls"][0]["index"] for (delta,) in calls] == [0, 1]
    (end,) = form.deltas(0, Piece(text="", tokens=1, finish="stop"), 0)
    assert (end["delta"], end["finish_reason"]) == ({}, "tool_calls")


def test_one_call_where_the_client_wants_no_more():
    """The first; whole, and in a stream, in which the others are no event."""
    whole = ChatForm(None, TaggedCalls, several=False).choice(
        0, Piece(text=CALL + CALL, tokens=9, finish="stop")
    )
    assert len(whole["message"]["tool_calls"]) == 1
    assert (whole["message"]["content"], whole["finish_reason"]) == (None, "tool_calls")
    form = ChatForm(None, TaggedCalls, several=False)
    (first,), second = (form.deltas(0, Piece(text=CALL, tokens=1), 0) for _ in range(2))
    assert len(first["delta"]["tool_calls"]) == 1
    assert second == []
    assert form.deltas(1, Piece(text=CALL, tokens=1), 0)
    (end,) = form.deltas(0, Piece(text=CALL, tokens=1, finish="stop"), 0)
    assert (end["delta"], end["finish_reason"]) == ({}, "tool_calls")


def test_the_call_of_a_named_tool_ends_as_openai_has_it():
    """With `stop`, or `length` where it was cut off."""
    for finish in ("stop", "length"):
        whole = ChatForm(None, lambda: NamedCall("f")).choice(
            0, Piece(text="{}", tokens=1, finish=finish)
        )
        assert whole["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
        assert whole["finish_reason"] == finish
