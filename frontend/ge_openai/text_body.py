"""What a client asks of a language model: the bodies of both kinds of completions, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ge_openai.api_error import ApiError
from ge_openai.fields import Fields, texts_or_tokens
from ge_openai.messages import Message, read_messages, read_tools
from ge_openai.rendering import Rendering, read_rendering
from ge_openai.schemas import Schema, read_response_format
from ge_openai.structure import GUIDED, forced_name, read_allowed

__all__ = ["ChatBody", "CompletionBody", "ReplyForm", "read_chat", "read_completion"]

MAX_PROMPTS = 128
MAX_COMPLETION_LOGPROBS = 5
MAX_CHAT_LOGPROBS = 20
# The engine's own names; it checks types and ranges. Those of the last three lines are vLLM's.
_SAMPLING = (
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("seed", "stop"),
    *("top_k", "min_p", "repetition_penalty", "stop_token_ids", "min_tokens", "ignore_eos"),
    *("bad_words", "priority", "prefix_cache", "cache_salt", "lora_name"),
    *("beam_width", "length_penalty", "early_stopping", "add_special_tokens"),
    *("skip_special_tokens", "include_stop_str_in_output"),
    *("use_beam_search", "detokenize", "prompt_logprobs", "truncate_prompt_tokens"),
    *("allowed_token_ids", "logits_processors", "spaces_between_special_tokens"),
    *GUIDED,
)
# They change nothing about an answer, and many clients send them.
_WITHOUT_EFFECT = (
    *("metadata", "prompt_cache_key", "prompt_cache_retention", "request_id"),
    *("safety_identifier", "service_tier", "store", "user"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyForm:
    """How the answer is to be given.

    Attributes:
        samples: of each prompt.
        top: how many best tokens come with each; None: no log-probabilities.
        stream: as events.
        usage: the last event tells the tokens.
        running_usage: each event tells those so far.
    """

    model: str
    samples: int
    top: int | None
    stream: bool
    usage: bool
    running_usage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionBody:
    """A request for `/v1/completions`: prompts as text or tokens, and the answers' format."""

    reply: ReplyForm
    prompts: tuple[str | tuple[int, ...], ...]
    answer: Schema | None
    sampling: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody:
    """A request for `/v1/chat/completions`.

    Attributes:
        tools: for the chat template; none where the client wants no calls.
        forced: the tool that has to be called, "" if any of them; None: none has to.
        several: an answer may have more than one call.
        answer: its format, where it calls no tool.
        rendering: what the chat template is told beside messages and tools.
    """

    reply: ReplyForm
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    forced: str | None
    several: bool
    answer: Schema | None
    rendering: Rendering
    sampling: dict[str, Any]


def read_completion(block: bytes) -> CompletionBody:
    """Return what a body asks for.

    Raises:
        ApiError: a field is unknown, not supported, or impossible.
    """
    fields = Fields(block)
    model = fields.text("model")
    prompts = texts_or_tokens("prompt", fields.take("prompt"), MAX_PROMPTS, empty=False)
    top = fields.whole("logprobs", 0, MAX_COMPLETION_LOGPROBS)
    fields.only("echo", False, why="the answer never begins with the prompt")
    fields.only("suffix", "", why="text is only written behind a prompt")
    samples = fields.whole("n", 1, MAX_PROMPTS) or 1
    limit = fields.take_all(("max_tokens",))
    reply, answer, sampling = _rest(fields, model, samples, top)
    sampling |= limit
    return CompletionBody(reply=reply, prompts=prompts, answer=answer, sampling=sampling)


def read_chat(block: bytes) -> ChatBody:
    """Return what a body asks for.

    Without a limit an answer may be as long as the model can hold. The chat template writes the
    special tokens, so none are added unless the client wants them.

    Raises:
        ApiError: a field is unknown, not supported, or impossible.
    """
    fields = Fields(block)
    model = fields.text("model")
    messages = read_messages(fields.take("messages"))
    tools = read_tools(fields.take("tools"))
    choice, tools = read_allowed(fields.take("tool_choice"), tools)
    forced = forced_name(choice, tools)
    several = fields.flag("parallel_tool_calls", absent=True)
    top = fields.whole("top_logprobs", 0, MAX_CHAT_LOGPROBS)
    if fields.flag("logprobs"):
        top = top or 0
    elif top:
        raise ApiError("top_logprobs needs logprobs: true", param="top_logprobs")
    else:
        top = None
    fields.only("echo", False, why="the answer never begins with the last message")
    for name in ("audio", "functions", "function_call", "prediction", "web_search_options"):
        fields.only(name, why="it has no meaning here")
    fields.only("modalities", ["text"], why="answers are text")
    rendering = read_rendering(fields)
    samples = fields.whole("n", 1, MAX_PROMPTS) or 1
    limits = fields.take_all(("max_completion_tokens", "max_tokens"))
    reply, answer, sampling = _rest(fields, model, samples, top)
    if forced is not None:
        _check_alone(sampling, "tool_choice")
    return ChatBody(
        reply=reply,
        messages=messages,
        tools=() if choice == "none" else tools,
        forced=forced,
        several=several,
        answer=answer,
        rendering=rendering,
        sampling={
            "add_special_tokens": False,
            **sampling,
            "max_tokens": next(iter(limits.values()), None),
        },
    )


def _rest(
    fields: Fields, model: str, samples: int, top: int | None
) -> tuple[ReplyForm, Schema | None, dict[str, Any]]:
    """Return what both kinds have: how to answer, in which format, and sampling parameters.

    No field is left.
    """
    answer = read_response_format(fields.take("response_format"))
    fields.only(
        "best_of", 1, samples, why="leave it out, ask for all with n, and choose by their logprobs"
    )
    stream = fields.flag("stream")
    usage, running = _usage(fields, stream=stream)
    sampling = fields.take_all(_SAMPLING)
    if answer is not None:
        _check_alone(sampling, "response_format")
    if samples > 1:
        sampling["n"] = samples
    if top is not None:
        sampling["logprobs"] = top
    fields.take_all(_WITHOUT_EFFECT)
    fields.end()
    reply = ReplyForm(
        model=model, samples=samples, top=top, stream=stream, usage=usage, running_usage=running
    )
    return reply, answer, sampling


def _usage(fields: Fields, *, stream: bool) -> tuple[bool, bool]:
    """Return whether `stream_options` ask for usage at the end, and in each event with it.

    OpenAI's `include_obfuscation` is taken: events are never padded here, whatever it says.
    """
    options = fields.take("stream_options")
    if options is None:
        return False, False
    if not (stream and isinstance(options, dict)):
        raise ApiError("stream_options is an object and needs stream: true", param="stream_options")
    fields.open_up("stream_options", options)
    fields.flag("stream_options.include_obfuscation")
    usage = fields.flag("stream_options.include_usage")
    return usage, fields.flag("stream_options.continuous_usage_stats") and usage


def _check_alone(sampling: dict[str, Any], param: str) -> None:
    """See that nothing beside a field says what an answer has to be."""
    if any(name in sampling for name in GUIDED):
        raise ApiError(
            f"{param} says what the answer has to be, and so does one of {', '.join(GUIDED)}; "
            "leave one out",
            param=param,
        )
