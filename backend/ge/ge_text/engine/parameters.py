"""What a client may ask of a generation: vLLM's names, types and ranges, read from plain values.

Values are what JSON gives. Numbers and booleans may also be texts, because clients of Triton's vLLM
backend send them so, and lists and objects JSON. An unknown name is refused, never ignored.

Source: vllm-project/vllm, vllm/sampling_params.py; triton-inference-server/vllm_backend@8de0c14.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from ge_backend.errors import InvalidRequest
from ge_text.models.sampling import BadWords, Sampling
from ge_text.models.structure import Structure, StructureKind

__all__ = ["EarlyStopping", "Parameters", "parse_parameters"]

DEFAULT_MAX_TOKENS = 16
MAX_SAMPLES = 128
MAX_BEAMS = 8
MAX_LENGTH_PENALTY = 10  # either way: more than lengths to that power is no number any more
MAX_PRIORITY = 1000  # either way: a level is worth seconds of waiting, and none waits for ever
MAX_SEED = 2**63 - 1
NO_SEED = -1  # as good as none, as in vLLM
MAX_STOPS = 128
MAX_STOP_LETTERS = 2**14  # of all of them: what looks for them has a state for each
MAX_STOP_TOKENS = 2**10  # a beam offers as many tokens more
MAX_LOGPROBS = 20
MAX_BAD_WORDS = 1024  # each becomes tokens three times
MAX_BAD_LETTERS = 2**16  # of all of them
MAX_BAD_TOKENS = 64  # of each; before every token, words of each length are looked for
MAX_STRUCTURE = 2**16  # letters; what a compiler has to do grows with them
MIN_TOP_P = 1e-9  # of the likeliest token alone
_MOST = 2**31 - 1

Encode = Callable[[str], Sequence[int]]


class EarlyStopping(Enum):
    """When a beam search is over; transformers' names.

    Attributes:
        FALSE: once those that run are not expected to become better.
        TRUE: as soon as there are as many whole texts as beams.
        NEVER: once those that run cannot become better, however long they get.
    """

    FALSE = "false"
    TRUE = "true"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """One request's wishes, in range.

    Attributes:
        sampling: how each token is drawn; `seed` is that of sample 0, sample i has `seed + i`.
        max_tokens: the most tokens of a sample's output; None: as many as the model can hold.
        max_new_tokens: without `max_tokens`, of as many as the model can hold at most these; the
            checkpoint's own default. None: it has none.
        min_tokens: neither end of text nor a stop token or text ends a sample before.
        stop: texts that end a sample and are cut off; for what turns tokens into text.
        stop_token_ids: tokens that end a sample, beside the model's ends of text.
        ignore_eos: the model's ends of text end nothing.
        n: samples of the same prompt.
        priority: the smaller, the earlier; heeded where `scheduling` is `priority`.
        prefix_cache: a beginning that was computed for another request is taken from the cache, and
            what this one computes is left there.
        cache_salt: only requests with the same one share what is in the cache.
        structure: what the output has to be; None: anything.
        seeded: `sampling.seed` is the client's own.
        beam_width: texts that a beam search follows at once; 1: none, tokens are drawn.
        length_penalty: of a beam search: what its length is raised to before it divides the
            log-probability of a text; above 0 long texts gain, below short ones.
        early_stopping: of a beam search.
        speculation: tokens may be guessed and verified, where the model is configured for that.
        lora_name: the adapter that changes the model for this request; "": none does.
        add_special_tokens: a prompt that is a text gets the special tokens that the tokenizer puts
            around every text; for what turns text into tokens.
        skip_special_tokens: the text has no special tokens; else all but an end of text.
        include_stop: the text ends with the stop text, or with that of the token that ended it.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    max_new_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    priority: int = 0
    prefix_cache: bool = True
    cache_salt: str = ""
    structure: Structure | None = None
    seeded: bool = False
    beam_width: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.FALSE
    speculation: bool = True
    lora_name: str = ""
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    include_stop: bool = False


def parse_parameters(
    given: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] | None = None,
    seed: int = 0,
    encode: Encode | None = None,
) -> Parameters:
    """Return what a client asked for.

    Args:
        given: by name, as JSON has it; None is as good as absent, but for `max_tokens`.
        defaults: for names that are not given, such as `Checkpoint.sampling`; `max_new_tokens`
            holds where `max_tokens` is null, too.
        seed: for a request that brings none; so a random choice stays the caller's.
        encode: a text's tokens without special ones; needed for `bad_words` only.

    Raises:
        InvalidRequest: a name is unknown, or a value impossible; says which values are not.
    """
    if not given.keys().isdisjoint(_AT_DEFAULT):
        given = _without_defaults(given)
    unknown = sorted(set(given) - set(_READERS))
    if unknown:
        raise InvalidRequest(
            f"sampling parameter {unknown[0]!r} is unknown; known are {', '.join(_READERS)}"
        )
    said = {name: one for name, one in given.items() if one is not None or name == "max_tokens"}
    own_defaults = dict(defaults or {})
    most_new = _max_tokens("max_new_tokens", own_defaults.pop("max_new_tokens", None))
    if said.get("max_tokens") is None and most_new is not None:
        said["max_tokens"] = None
    values = {name: _READERS[name](name, value) for name, value in {**own_defaults, **said}.items()}
    if values.get("seed") == NO_SEED:
        del values["seed"]
    if words := values.pop("bad_words", ()):
        values["bad_words_ids"] = _bad_words(words, encode)
    structure = None if values.keys().isdisjoint(_STRUCTURES) else _structure(values)
    if not values.keys().isdisjoint(_NEED_BEAMS):
        _check_beams(given, values)
    values["include_stop"] = values.pop("include_stop_str_in_output", False)
    own = {name: values.pop(name) for name in Parameters.__dataclass_fields__ if name in values}
    sampling = Sampling(**{"seed": seed, **values})
    own["seeded"] = "seed" in values
    own["max_new_tokens"] = most_new
    return _consistent(Parameters(sampling=sampling, structure=structure, **own))


def _consistent(asked: Parameters) -> Parameters:
    if asked.max_tokens is not None and asked.min_tokens > asked.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {asked.min_tokens}; it has to be at most max_tokens, which is "
            f"{asked.max_tokens}"
        )
    if asked.n > asked.beam_width > 1:
        raise InvalidRequest(
            f"n is {asked.n}; of a beam search it has to be at most beam_width, which is "
            f"{asked.beam_width}"
        )
    return asked


def _without_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters without those of vLLM's that can only be what they are anyhow.

    Raises:
        InvalidRequest: one of them is something else.
    """
    left = dict(given)
    for name in [name for name in given if name in _AT_DEFAULT]:
        value, same = left.pop(name), _AT_DEFAULT[name]
        if name == "best_of":  # as many as are asked for
            same = (*same, _plain(given.get("n")))
        if value is not None and same and _plain(value) not in same:
            raise InvalidRequest(
                f"{name} is {value!r:.80}, which is not supported; leave it out{_INSTEAD[name]}"
            )
    return left


def _plain(value: Any) -> str:
    """Return a value as JSON, in which a text that holds JSON is that."""
    return str(value).lower() if isinstance(value, str) else _json(value)


def _check_beams(given: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise where a request asks for beams and for what they do not have, or the other way.

    What was given and is at its default asks for nothing.
    """
    named = {
        name
        for name, value in given.items()
        if value is not None and (name not in _DEFAULTS or values.get(name) != _DEFAULTS[name])
    }
    beam_width = values.get("beam_width", 1)
    if beam_width == 1 and (only := sorted(named & _OF_BEAMS)):
        raise InvalidRequest(f"{only[0]} is for beam search; it needs a beam_width above 1")
    if beam_width > 1 and (other := sorted(named - _WITH_BEAMS)):
        raise InvalidRequest(
            f"{other[0]} cannot be combined with beam_width, which looks for the most likely text; "
            "leave one of them out"
        )


def _bad_words(words: Sequence[str], encode: Encode | None) -> BadWords:
    """Return each word's tokens as they are at the beginning of a text and within one.

    Within one it may stand behind a space, or behind none, where some tokenizers put one by
    themselves when a text begins: there it is looked for behind a line's end.
    """
    if encode is None:
        raise InvalidRequest("bad_words needs a tokenizer, and this model has none; leave it out")
    found: list[tuple[int, ...]] = []
    line = tuple(encode("\n"))
    for word in words:
        bare = tuple(encode(word.lstrip()))
        if len(bare) > MAX_BAD_TOKENS:
            raise InvalidRequest(
                f"bad_words has {word[:40]!r} of {len(bare)} tokens; each may have {MAX_BAD_TOKENS}"
            )
        behind = tuple(encode("\n" + word.lstrip()))
        spellings = [tuple(encode(" " + word.lstrip()))]
        if line and behind[: len(line)] == line:
            spellings.append(behind[len(line) :])
        found += [bare, *filter(None, spellings)]
    return BadWords.of(dict.fromkeys(found))


def _structure(values: dict[str, Any]) -> Structure:
    """Take the structure out of what was given; there is one at most."""
    name, *others = (name for name in _STRUCTURES if name in values)
    if others:
        listed = " and ".join((name, *others))
        raise InvalidRequest(f"{listed} are given; a text has one structure, leave the others out")
    structure: Structure = values.pop(name)
    return structure


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequest(f"{name} is {value!r}; it has to be a number")
    return number


def _top_p(name: str, value: Any) -> float:
    """Return a share; 0, with OpenAI, is that of the likeliest token alone."""
    return _number(name, value) or MIN_TOP_P


def _whole(low: int, high: int) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        try:
            number = None if isinstance(value, bool) else int(value)
            exact = number is not None and (isinstance(value, str) or number == value)
        except (TypeError, ValueError, OverflowError):
            exact = False
        if not exact or number is None or not low <= number <= high:
            raise InvalidRequest(
                f"{name} is {value!r}; it has to be a whole number from {low} to {high}"
            )
        return number

    return read


_at_least_one = _whole(1, _MOST)


def _max_tokens(name: str, value: Any) -> int | None:
    return None if value is None else _at_least_one(name, value)


def _switch(name: str, value: Any) -> bool:
    known = {True: True, False: False, "true": True, "false": False, "True": True, "False": False}
    if not isinstance(value, (bool, str)) or value not in known:
        raise InvalidRequest(f"{name} is {value!r}; it has to be true or false")
    return known[value]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {value!r}; it has to be a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON may hold half of a surrogate pair
        raise InvalidRequest(f"{name} is {value!r}, which is not Unicode: {error}") from error
    return value


def _early_stopping(name: str, value: Any) -> EarlyStopping:
    if value == EarlyStopping.NEVER.value:
        return EarlyStopping.NEVER
    try:
        return EarlyStopping.TRUE if _switch(name, value) else EarlyStopping.FALSE
    except InvalidRequest as error:
        raise InvalidRequest(f"{name} is {value!r}; it has to be true, false or 'never'") from error


def _length_penalty(name: str, value: Any) -> float:
    number = _number(name, value)
    if abs(number) > MAX_LENGTH_PENALTY:
        raise InvalidRequest(
            f"{name} is {number}; it has to be from -{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}"
        )
    return number


def _few(most: int, letters: int) -> Callable[[str, Any], tuple[str, ...]]:
    """Return what reads at most `most` texts, of `letters` letters in all."""

    def read(name: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, (list, tuple)) and len(value) > most:
            raise InvalidRequest(
                f"{name} has {len(value)} texts; it may have {most}: leave the others out"
            )
        texts = _texts(name, value)
        if (found := sum(map(len, texts))) > letters:
            raise InvalidRequest(
                f"{name} has {found} letters in all; it may have {letters}: leave texts out or "
                "shorten them"
            )
        return texts

    return read


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(t, str) and t for t in texts):
        raise InvalidRequest(f"{name} is {value!r}; it has to be a text or a list of texts, no ''")
    return tuple(_text(name, text) for text in texts)


def _opened(value: Any) -> Any:
    """Return a list or an object that may come as text: the host's parameters are texts at most."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    tokens = _opened(value)
    if not isinstance(tokens, (list, tuple)):
        raise InvalidRequest(f"{name} is {value!r}; it has to be a list of tokens")
    if len(tokens) > MAX_STOP_TOKENS:
        raise InvalidRequest(
            f"{name} has {len(tokens)} tokens; it may have {MAX_STOP_TOKENS}: leave the others out"
        )
    return tuple(_whole(0, _MOST)(name, token) for token in tokens)


def _biases(name: str, value: Any) -> dict[int, float]:
    """Return token: bias, each within OpenAI's -100 to 100, as vLLM clamps it."""
    biases = _opened(value)
    if not isinstance(biases, Mapping):
        raise InvalidRequest(f"{name} is {value!r}; it has to be an object of token: number")
    return {
        _whole(0, _MOST)(name, token): max(-100.0, min(100.0, _number(name, bias)))
        for token, bias in biases.items()
    }


def _written(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_STRUCTURE:
        said = f"of {len(value)} letters" if isinstance(value, str) else repr(value)
        raise InvalidRequest(f"{name} is {said}; it has to be a text of 1 to {MAX_STRUCTURE}")
    return _text(name, value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)  # letters are counted, and an escape has six


def _schema(name: str, value: Any) -> str:
    """Return a JSON schema as text; it may come as one."""
    return _written(name, value if isinstance(value, str) else _json(value))


def _choices(name: str, value: Any) -> str:
    """Return texts to choose from as a JSON list; they may come as one."""
    texts = _opened(value)
    if not isinstance(texts, (list, tuple)) or not texts:
        raise InvalidRequest(f"{name} is {value!r}; it has to be a list of texts, at least one")
    return _written(name, _json(_texts(name, texts)))


def _held_to(
    kind: StructureKind, read: Callable[[str, Any], str]
) -> Callable[[str, Any], Structure]:
    """Return what reads a structure of a kind."""
    return lambda name, value: Structure(kind, read(name, value))


def _structured_outputs(name: str, value: Any) -> Structure:
    """Return what newer releases of vLLM call `{"regex": "a+"}`; the object may come as text."""
    said = _opened(value)
    given = said if isinstance(said, Mapping) else {}
    given = {
        kind: one for kind, one in given.items() if one not in (None, False) and kind != "backend"
    }
    if given == {"json_object": True}:
        given = {"json": {"type": "object"}}
    kind, one = next(iter(given.items()), ("", None))
    if len(given) != 1 or kind not in _KINDS:
        raise InvalidRequest(
            f"{name} is {value!r:.80}; it has to be an object with one of {', '.join(_KINDS)}"
        )
    structure: Structure = _READERS[_KINDS[kind]](f"{name}.{kind}", one)
    return structure


# What vLLM's object calls them, and the parameter of their own.
_KINDS = {kind.value.removeprefix("guided_"): kind.value for kind in StructureKind}
_STRUCTURES = (*_KINDS.values(), "structured_outputs", "guided_decoding")
_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "temperature": _number,
    "top_p": _top_p,
    "top_k": _whole(-1, _MOST),
    "min_p": _number,
    "repetition_penalty": _number,
    "presence_penalty": _number,
    "frequency_penalty": _number,
    "logit_bias": _biases,
    "seed": _whole(-MAX_SEED - 1, MAX_SEED),
    "stop": _few(MAX_STOPS, MAX_STOP_LETTERS),
    "stop_token_ids": _tokens,
    "max_tokens": _max_tokens,
    "min_tokens": _whole(0, _MOST),
    "ignore_eos": _switch,
    "logprobs": _whole(0, MAX_LOGPROBS),
    "bad_words": _few(MAX_BAD_WORDS, MAX_BAD_LETTERS),
    "n": _whole(1, MAX_SAMPLES),
    "priority": _whole(-MAX_PRIORITY, MAX_PRIORITY),
    "prefix_cache": _switch,
    "cache_salt": _text,
    "beam_width": _whole(1, MAX_BEAMS),
    "length_penalty": _length_penalty,
    "early_stopping": _early_stopping,
    "guided_json": _held_to(StructureKind.JSON, _schema),
    "guided_regex": _held_to(StructureKind.REGEX, _written),
    "guided_choice": _held_to(StructureKind.CHOICE, _choices),
    "guided_grammar": _held_to(StructureKind.GRAMMAR, _written),
    "structured_outputs": _structured_outputs,
    "guided_decoding": _structured_outputs,
    "speculation": _switch,
    "lora_name": _text,
    "add_special_tokens": _switch,
    "skip_special_tokens": _switch,
    "include_stop_str_in_output": _switch,
}
# vLLM's names whose values change the answer, with those that do not, as JSON; of a name without
# any, every value is as good. Null is as good as absent for all of them.
_AT_DEFAULT: Mapping[str, tuple[str, ...]] = {
    "use_beam_search": ("false",),
    "detokenize": ("true",),
    "echo": ("false",),
    "prompt_logprobs": ("0", "false"),
    "truncate_prompt_tokens": ("null",),
    "allowed_token_ids": ("null",),
    "logits_processors": ("[]",),
    "spaces_between_special_tokens": (),
    "skip_reading_prefix_cache": ("false",),
    "flat_logprobs": ("false",),
    "best_of": ("1",),
}
# What to say in place of one of them; ends the message.
_INSTEAD = dict.fromkeys(_AT_DEFAULT, "") | {
    "use_beam_search": ", or say beam_width",
    "truncate_prompt_tokens": ", and send the end of the prompt alone",
    "allowed_token_ids": ", or say logit_bias",
    "skip_reading_prefix_cache": ", or say prefix_cache: false",
    "prompt_logprobs": "; only tokens of the output have log-probabilities",
    "detokenize": ", and name the outputs that are wanted",
    "best_of": ", ask for all samples with n, and choose by cumulative_logprob",
}
_DEFAULTS: Mapping[str, Any] = {
    each.name: getattr(default, each.name)
    for default in (Sampling(), Parameters())
    for each in fields(default)
} | {"include_stop_str_in_output": False, "logit_bias": {}, "bad_words": ()}
_OF_BEAMS = {"length_penalty", "early_stopping"}
_NEED_BEAMS = _OF_BEAMS | {"beam_width"}
_WITH_BEAMS = _NEED_BEAMS | {
    "temperature",
    "seed",
    "n",
    "max_tokens",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "priority",
    "prefix_cache",
    "cache_salt",
    "speculation",
    "lora_name",
    "add_special_tokens",
    "skip_special_tokens",
    "include_stop_str_in_output",
}
