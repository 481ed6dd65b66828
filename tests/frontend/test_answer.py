"""Answers, whole and as events."""

import json

from ge_openai.answer import END, TextAnswerWriter, event
from ge_openai.forms import ChatForm, CompletionForm
from ge_openai.logprobs import TokenLogprob
from ge_openai.text_call import Piece

HEAD = {"id": "x", "created": 1, "model": "m"}


def piece(text, finish="", tokens=1):
    return Piece(text=text, tokens=tokens, finish=finish, prompt_tokens=5)


def read(blocks):
    return [json.loads(block.removeprefix(b"data: ")) for block in blocks]


def test_an_event_is_one_line():
    """And an empty one behind it, whatever the text."""
    block = event({"a": "x\n\ny"})
    assert block.startswith(b"data: ")
    assert block.endswith(b"\n\n")
    assert block.count(b"\n") == 2


def test_a_whole_answer_counts_every_prompt_once():
    """Two prompts with two samples each; what comes after a sample's end is none of it."""
    writer = TextAnswerWriter(CompletionForm(None), HEAD, 4, 2, usage=False)
    for index in range(4):
        writer.take(index, piece("a"))
        writer.take(index, piece("b", "stop"))
        writer.take(index, piece("", "stop", tokens=0))
    whole = writer.whole()
    assert [choice["text"] for choice in whole["choices"]] == ["ab"] * 4
    assert whole["usage"] == {"prompt_tokens": 10, "completion_tokens": 8, "total_tokens": 18}
    assert (whole["id"], whole["object"]) == ("x", "text_completion")


def test_events_of_a_chat():
    """Its role first, then what is new; nothing where nothing is; the end once."""
    writer = TextAnswerWriter(ChatForm(None), HEAD, 1, 1, usage=True)
    first, second = read(writer.events(0, piece("a")))
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert second["choices"][0]["delta"] == {"content": "a"}
    assert second["usage"] is None
    assert list(writer.events(0, piece(""))) == []
    text, last = read(writer.events(0, piece("b", "length")))
    assert text["choices"][0]["delta"] == {"content": "b"}
    assert last["choices"][0]["finish_reason"] == "length"
    assert list(writer.events(0, piece("", "length"))) == []
    usage, end = writer.end()
    assert read([usage])[0]["usage"]["completion_tokens"] == 3
    assert read([usage])[0]["choices"] == []
    assert end == END


def test_offsets_go_on_from_token_to_token():
    """Also where text is held back, and each choice by itself; as in an answer that is whole."""
    words = ("one", " two", " three", " four")
    told = ("one", "", "", " two three four")
    streamed, whole = (
        TextAnswerWriter(CompletionForm(0), HEAD, 2, 2, usage=False) for _ in range(2)
    )
    offsets = [[], []]
    for word, text in zip(words, told, strict=True):
        token = TokenLogprob(token=word, logprob=-1.0, top=())
        new = Piece(text=text, tokens=1, logprobs=(token,))
        for index in (0, 1):
            whole.take(index, new)
            for said in read(streamed.events(index, new)):
                offsets[index] += said["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [[0, 3, 7, 13]] * 2
    assert [choice["logprobs"]["text_offset"] for choice in whole.whole()["choices"]] == offsets


def test_running_usage_is_told_with_every_event():
    """Of all choices so far, as vLLM's `continuous_usage_stats`; the last event has it all."""
    writer = TextAnswerWriter(CompletionForm(None), HEAD, 2, 1, usage=True, running=True)
    told = [
        read(list(writer.events(index, Piece(text="a", tokens=tokens, prompt_tokens=3))))
        for index, tokens in ((0, 1), (1, 2))
    ]
    assert [each["usage"]["completion_tokens"] for events in told for each in events] == [1, 3]
    assert read([next(iter(writer.end()))])[0]["usage"]["total_tokens"] == 9


def test_without_usage_there_is_no_word_of_it():
    """As OpenAI's own events are."""
    writer = TextAnswerWriter(CompletionForm(None), HEAD, 1, 1, usage=False)
    (only,) = read(writer.events(0, piece("a")))
    assert "usage" not in only
    assert list(writer.end()) == [END]
