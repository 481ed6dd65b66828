"""What a client may ask for, under vLLM's names."""

from dataclasses import replace

import pytest

from ge_backend.errors import InvalidRequest
from ge_text.engine.parameters import parse_parameters
from ge_text.models.structure import Structure, StructureKind


def test_nothing_given_is_vllms_defaults():
    """A request without parameters is what vLLM's SamplingParams() is."""
    asked = parse_parameters({})
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.top_k) == (1, 1, 0)
    assert (asked.max_tokens, asked.min_tokens, asked.n, asked.stop) == (16, 0, 1, ())
    assert (asked.ignore_eos, asked.priority, asked.sampling.logprobs) == (False, 0, None)


def test_every_parameter_arrives():
    """Each name ends where the engine or the sampler looks for it."""
    asked = parse_parameters(
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.2,
            "frequency_penalty": -0.2,
            "logit_bias": {"5": -3, "6": 1e39, "7": -101},
            "seed": -7,
            "stop": "end",
            "stop_token_ids": [1, 2],
            "max_tokens": 5,
            "min_tokens": 2,
            "ignore_eos": True,
            "logprobs": 3,
            "bad_words": ["no"],
            "n": 2,
            "priority": -1,
            "prefix_cache": "false",
            "cache_salt": "mine",
            "guided_regex": "[a-z]+",
            "add_special_tokens": False,
            "skip_special_tokens": False,
        },
        encode=lambda text: [len(text)],
    )
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.seed) == (0.1, 1.1, -7)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.2, -0.2)
    assert (sampling.logit_bias, sampling.logprobs) == ({5: -3.0, 6: 100.0, 7: -100.0}, 3)
    assert sampling.bad_words_ids == ((2,), (3,))
    assert (asked.stop, asked.stop_token_ids) == (("end",), (1, 2))
    assert (asked.max_tokens, asked.min_tokens, asked.ignore_eos) == (5, 2, True)
    assert (asked.n, asked.priority) == (2, -1)
    assert (asked.prefix_cache, asked.cache_salt) == (False, "mine")
    assert not asked.add_special_tokens
    assert not asked.skip_special_tokens
    assert asked.structure == Structure(StructureKind.REGEX, "[a-z]+")


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"guided_json": {"type": "object"}}, "guided_json", '{"type": "object"}'),
        ({"guided_json": '{"type": "object"}'}, "guided_json", '{"type": "object"}'),
        ({"guided_choice": ["yes", "no"]}, "guided_choice", '["yes", "no"]'),
        ({"guided_choice": '["yes", "no"]'}, "guided_choice", '["yes", "no"]'),
        ({"guided_grammar": "start: x", "guided_json": None}, "guided_grammar", "start: x"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "guided_choice", '["yes", "no"]'),
        ({"structured_outputs": '{"regex": "a+", "json": null}'}, "guided_regex", "a+"),
        ({"structured_outputs": {"grammar": "start: x"}}, "guided_grammar", "start: x"),
        ({"structured_outputs": {"json": {}}}, "guided_json", "{}"),
        ({"structured_outputs": {"json_object": True}}, "guided_json", '{"type": "object"}'),
    ],
)
def test_structures_come_as_values_or_as_texts(given, kind, text):
    """A request parameter can only be a text, a JSON object can hold the value itself."""
    assert parse_parameters(given).structure == Structure(StructureKind(kind), text)


@pytest.mark.parametrize(
    ("name", "around", "given"),
    [
        ("guided_json", '{"const": "%s"}', lambda text: {"const": text}),
        ("guided_choice", '["%s"]', lambda text: [text]),
    ],
)
def test_letters_of_a_structure_are_counted_not_their_escapes(name, around, given):
    """Six of them stand for one of most languages' letters."""
    text = "说" * 60_000
    assert parse_parameters({name: given(text)}).structure.text == around % text
    with pytest.raises(InvalidRequest, match="which is not Unicode"):
        parse_parameters({name: given("\ud800")})


def test_lists_and_objects_may_come_as_texts():
    """A parameter of the host's is a text at most; what stops a text may be any, so a text is."""
    asked = parse_parameters({"stop_token_ids": "[5, 6]", "logit_bias": '{"5": 1}', "stop": "[5]"})
    assert (asked.stop_token_ids, asked.sampling.logit_bias) == ((5, 6), {5: 1.0})
    assert asked.stop == ("[5]",)


def test_texts_of_numbers_are_taken_as_vllms_clients_send_them():
    """Clients of Triton's vLLM backend send numbers and booleans as texts."""
    asked = parse_parameters({"temperature": "0.5", "max_tokens": "7", "ignore_eos": "True"})
    assert (asked.sampling.temperature, asked.max_tokens, asked.ignore_eos) == (0.5, 7, True)


def test_none_is_as_good_as_absent_and_lifts_the_limit_of_tokens():
    """A null means the default, and for max_tokens as many as there can be, as in vLLM."""
    asked = parse_parameters({"temperature": None, "seed": None, "max_tokens": None}, seed=11)
    assert (asked.sampling.temperature, asked.sampling.seed, asked.max_tokens) == (1.0, 11, None)


@pytest.mark.parametrize("seed", [-1, "-1"])
def test_a_seed_of_minus_1_is_none_as_in_vllm(seed):
    """Each request that says so draws its own numbers, not all of them the same."""
    asked = parse_parameters({"seed": seed}, seed=11)
    assert (asked.sampling.seed, asked.seeded) == (11, False)
    assert parse_parameters({"seed": -2}, seed=11).seeded


def test_none_leaves_a_checkpoints_default():
    """As if it had not been said; so many clients write all fields."""
    defaults = {"temperature": 0.6, "top_p": 0.9}
    given = {"temperature": None, "top_p": None, "max_tokens": None}
    asked = parse_parameters(given, defaults=defaults)
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.max_tokens) == (0.6, 0.9, None)


def test_defaults_of_a_checkpoint_stand_behind_what_is_given():
    """What a checkpoint says holds until the client says otherwise."""
    asked = parse_parameters({"temperature": 0.7}, defaults={"temperature": 0.3, "max_tokens": 9})
    assert (asked.sampling.temperature, asked.max_tokens) == (0.7, 9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"best_off": 2}, "'best_off' is unknown; known are temperature"),
        (
            {"best_of": 3, "n": 2},
            "best_of is 3, which is not supported; leave it out, ask for all samples with n, and",
        ),
        ({"best_of": 2, "beam_width": 2}, "best_of is 2, which is not supported"),
        ({"temperature": "warm"}, "temperature is 'warm'; it has to be a number"),
        ({"temperature": True}, "temperature is True"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": -1}, "temperature is -1.0; it has to be from 0 to 1e+20"),
        ({"top_p": -0.1}, "top_p is -0.1; it has to be above 0 and at most 1"),
        ({"top_k": 1.5}, "top_k is 1.5; it has to be a whole number"),
        ({"min_p": 2}, "min_p is 2.0; it has to be from 0 to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0.0; it has to be from 1e-20 to 1e+20"),
        ({"presence_penalty": 3}, "presence_penalty is 3.0"),
        ({"logprobs": 21}, "logprobs is 21; it has to be a whole number from 0 to 20"),
        ({"max_tokens": 0}, "max_tokens is 0; it has to be a whole number from 1"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9; it has to be at most max_tokens"),
        ({"stop": [""]}, "stop is"),
        ({"stop": 3}, "stop is 3"),
        ({"stop": ["x"] * 129}, "stop has 129 texts; it may have 128"),
        (
            {"stop": ["x" * 4096] * 4 + ["y"]},
            "stop has 16385 letters in all; it may have 16384: leave texts out or shorten them",
        ),
        ({"bad_words": ["x"] * 1025}, "bad_words has 1025 texts; it may have 1024"),
        ({"bad_words": ["x" * 65537]}, "bad_words has 65537 letters in all; it may have 65536"),
        ({"stop_token_ids": 3}, "stop_token_ids is 3; it has to be a list"),
        (
            {"stop_token_ids": list(range(1025))},
            "stop_token_ids has 1025 tokens; it may have 1024: leave the others out",
        ),
        ({"stop_token_ids": [-1]}, "stop_token_ids is -1"),
        ({"logit_bias": [1]}, "logit_bias is"),
        ({"logit_bias": {"x": 1}}, "logit_bias is 'x'"),
        ({"ignore_eos": 1}, "ignore_eos is 1; it has to be true or false"),
        ({"ignore_eos": "perhaps"}, "ignore_eos is 'perhaps'"),
        ({"n": 0}, "n is 0; it has to be a whole number from 1 to 128"),
        (
            {"use_beam_search": True},
            "use_beam_search is True, which is not supported; leave it out",
        ),
        ({"prompt_logprobs": 1}, "prompt_logprobs is 1, which is not supported; leave it out"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids is [1], which is not supported"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens is 5, which is not supported"),
        ({"detokenize": "false"}, "detokenize is 'false', which is not supported"),
        ({"include_stop_str_in_output": 2}, "include_stop_str_in_output is 2; it has to be true"),
        ({"priority": 10**9}, "priority is 1000000000; it has to be a whole number from -1000"),
        ({"seed": 2**63}, "seed is"),
        ({"seed": float("inf")}, "seed is inf"),
        ({"prefix_cache": 1}, "prefix_cache is 1; it has to be true or false"),
        ({"cache_salt": 1}, "cache_salt is 1; it has to be a text"),
        ({"cache_salt": "\ud800"}, r"cache_salt is '\ud800', which is not Unicode"),
        ({"beam_width": 9}, "beam_width is 9; it has to be a whole number from 1 to 8"),
        ({"beam_width": 2, "n": 3}, "n is 3; of a beam search it has to be at most beam_width"),
        ({"length_penalty": 2}, "length_penalty is for beam search; it needs a beam_width"),
        ({"beam_width": 2, "length_penalty": 11}, "length_penalty is 11.0; it has to be from -10"),
        ({"beam_width": 2, "early_stopping": 3}, "it has to be true, false or 'never'"),
        ({"beam_width": 2, "top_p": 0.5}, "top_p cannot be combined with beam_width"),
        ({"beam_width": 2, "stop": "x"}, "stop cannot be combined with beam_width"),
        ({"bad_words": ["x"]}, "bad_words needs a tokenizer"),
        ({"guided_regex": ""}, "guided_regex is of 0 letters; it has to be a text of 1 to 65536"),
        ({"guided_regex": 7}, "guided_regex is 7; it has to be a text"),
        ({"guided_grammar": "x" * 65537}, "guided_grammar is of 65537 letters"),
        ({"guided_json": {"enum": ["x" * 65536]}}, "guided_json is of 65550 letters"),
        ({"guided_choice": []}, "guided_choice is []; it has to be a list of texts, at least one"),
        ({"guided_choice": "yes"}, "guided_choice is 'yes'; it has to be a list of texts"),
        ({"guided_choice": ["a", ""]}, "guided_choice is ['a', '']; it has to be a text"),
        (
            {"guided_regex": "a", "guided_choice": ["a"]},
            "guided_regex and guided_choice are given; a text has one structure",
        ),
        (
            {"guided_regex": "a", "structured_outputs": {"regex": "a"}},
            "guided_regex and structured_outputs are given; a text has one structure",
        ),
        (
            {"structured_outputs": {"regex": 7}},
            "structured_outputs.regex is 7; it has to be a text",
        ),
        (
            {"structured_outputs": {}},
            "structured_outputs is {}; it has to be an object with one of",
        ),
        ({"structured_outputs": "[" * 9999}, "it has to be an object with one of json, regex"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "one of json, regex, choice, grammar"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structural_tag': 'x'}; it has to be an"),
    ],
)
def test_the_impossible_is_refused_by_name_and_range(given, message):
    """An unknown or impossible value is the client's error, and says what would be possible."""
    with pytest.raises(InvalidRequest) as caught:
        parse_parameters(given)
    assert message in str(caught.value)


def test_a_bad_word_is_kept_from_the_beginning_and_from_within_a_text():
    """Tokenizers write a word in two ways, with and without a space before it."""
    tokens = {"no": [1], " no": [2], "never": [3, 4], " never": [5]}
    lines = {"\n": [9], "\nno": [9, 1], "\nnever": [9, 6]}
    asked = parse_parameters({"bad_words": ["no", " never"]}, encode=(tokens | lines).__getitem__)
    assert set(asked.sampling.bad_words_ids) == {(1,), (2,), (3, 4), (5,), (6,)}


def test_a_tokenizer_that_joins_a_line_to_a_word_tells_no_third_spelling():
    """Then what stands behind the line's end cannot be told apart from it."""
    tokens = {"no": [1], " no": [2], "\n": [9], "\nno": [8]}
    asked = parse_parameters({"bad_words": ["no"]}, encode=tokens.__getitem__)
    assert set(asked.sampling.bad_words_ids) == {(1,), (2,)}


def test_vllms_defaults_may_be_spelled_out():
    """By JSON's values, by texts as Triton's parameters hold them, or by null."""
    given = {
        "use_beam_search": "False",
        "detokenize": True,
        "echo": False,
        "prompt_logprobs": 0,
        "truncate_prompt_tokens": None,
        "allowed_token_ids": None,
        "logits_processors": None,
        "spaces_between_special_tokens": False,
        "include_stop_str_in_output": "false",
        "skip_special_tokens": True,
        "length_penalty": 1.0,
        "early_stopping": False,
        "logit_bias": {},
        "n": 1,
        "best_of": 1,
        "top_k": -1,
        "min_p": 0.0,
        "guided_decoding": None,
    }
    found = parse_parameters(given)
    assert found == replace(
        parse_parameters({}), sampling=replace(parse_parameters({}).sampling, top_k=-1)
    )


def test_beams_take_what_they_do_not_heed_at_its_default():
    """Clients that write all of vLLM's parameters out ask for nothing more."""
    given = {"beam_width": 2, "top_p": 1.0, "presence_penalty": 0, "stop": [], "best_of": 1}
    assert parse_parameters(given).beam_width == 2


def test_greedy_samples_may_be_several():
    """OpenAI gives them, though all are equal."""
    assert parse_parameters({"n": 2, "temperature": 0}).n == 2


@pytest.mark.parametrize("given", [{"best_of": 3}, {"best_of": "3"}, {"best_of": 1}])
def test_as_many_samples_as_are_told_may_be_drawn(given):
    """`best_of` of 1, or of `n`, chooses nothing; clients of vLLM send it."""
    assert parse_parameters({**given, "n": 3}) == parse_parameters({"n": 3})


def test_a_share_of_nothing_is_the_likeliest_token():
    """As OpenAI takes it."""
    assert 0 < parse_parameters({"top_p": 0}).sampling.top_p < 1e-6


def test_a_checkpoints_own_length_is_the_default():
    """It holds where nothing is said, and null says nothing; a number of the client's goes before."""
    defaults = {"max_new_tokens": 9, "temperature": 0.5}
    for given in ({}, {"max_tokens": None}):
        found = parse_parameters(given, defaults=defaults)
        assert (found.max_tokens, found.max_new_tokens) == (None, 9)
    assert parse_parameters({"max_tokens": 3}, defaults=defaults).max_tokens == 3
    with pytest.raises(InvalidRequest, match="max_new_tokens is 0; it has to be"):
        parse_parameters({}, defaults={"max_new_tokens": 0})


def test_an_older_name_of_a_structure():
    """That vllm_backend takes, with the compiler that may be named in it."""
    asked = parse_parameters({"guided_decoding": '{"regex": "a+", "backend": "auto"}'})
    assert asked.structure == Structure(StructureKind.REGEX, "a+")


def test_a_bad_word_of_many_tokens_is_refused():
    """Before every token all words are looked for, each length by itself."""
    with pytest.raises(InvalidRequest, match=r"has 'a{40}' of 65 tokens; .* may have 64"):
        parse_parameters({"bad_words": ["b", "a" * 65]}, encode=list)
    assert len(parse_parameters({"bad_words": ["a" * 63]}, encode=list).sampling.bad_words_ids) == 2


def test_beams_may_be_told_that_nothing_is_guessed():
    """Nothing ever is for them, so that takes nothing away."""
    assert not parse_parameters({"beam_width": 2, "speculation": False}).speculation
