"""Text becomes tokens, and tokens whole characters, whatever kind of tokenizer it is."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

from builders.null_models import comes_true
from builders.text import BYTE_SPECIAL, TEXT, byte_fallback, byte_level
from ge_backend.engines.preprocess.text import open_tokenizer, token_bytes
from ge_backend.errors import InvalidRequest, ModelError

LETTER = "\u05d0"


@pytest.fixture(scope="module", params=[byte_level, byte_fallback])
def tokenizer(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    request.param().save(str(path))
    return open_tokenizer(path)


def streamed(tokenizer, ids, known=()):
    stream = tokenizer.stream(known)
    return [stream.step(token) for token in ids]


def test_a_text_survives_the_way_there_and_back(tokenizer):
    """Encoded and decoded it is itself."""
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == np.int64
    assert tokenizer.decode(ids) == TEXT


def test_a_stream_tells_the_same_text_in_whole_characters(tokenizer):
    """No piece has half a character, and together they are the text."""
    pieces = streamed(tokenizer, tokenizer.encode(TEXT))
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert "" in pieces  # the bytes of one character come in several tokens


@pytest.mark.parametrize("known", [1, 7, 20, 40])
def test_a_stream_goes_on_behind_what_was_told(tokenizer, known):
    """After a restart the rest of the text is what it would have been."""
    ids = tokenizer.encode(TEXT).tolist()
    whole = "".join(streamed(tokenizer, ids))
    before = "".join(streamed(tokenizer, ids[:known]))
    after = "".join(streamed(tokenizer, ids[known:], ids[:known]))
    assert before + after == whole


@pytest.mark.parametrize("known", [0, 5])
def test_the_end_gives_out_whole_characters(tokenizer, known):
    """Those that came in one token with half a character, whose other half never came."""
    ids = tokenizer.encode("na你 na😀").tolist()
    for count in range(known, len(ids) + 1):
        stream = tokenizer.stream(ids[:known])
        pieces = [stream.step(token) for token in ids[known:count]]
        whole = tokenizer.decode(ids[:count]).rstrip("\ufffd")
        before = tokenizer.decode(ids[:known]).rstrip("\ufffd")
        assert before + "".join(pieces) + stream.rest() == whole
        assert stream.rest() == ""


def test_special_tokens_are_text_only_where_they_are_asked_for(tokenizer):
    """As a call's tags are; whatever they stand behind."""
    a, d = tokenizer.encode("na").tolist(), tokenizer.encode("nd").tolist()
    special = tokenizer.encode(BYTE_SPECIAL[0], special=False).tolist()
    assert len(special) == 1
    for known in ((), a):
        for wanted, name in ((False, ""), (True, BYTE_SPECIAL[0])):
            stream = tokenizer.stream(known, special=wanted)
            text = "".join(map(stream.step, [*special, *d, *special])) + stream.rest()
            assert text.replace(" ", "") == f"{name}nd{name}"


def joined(tmp_path):
    """Return a tokenizer with letters and the first byte of the next one in one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=262,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["ab你", "ab好", "ab中"] * 9, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return open_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("ends", [1, 2, 3])
def test_letters_before_half_a_character_are_not_lost(tmp_path, ends):
    """As where an answer is cut off by its length within a token's character."""
    tokenizer = joined(tmp_path)
    token = next(
        token
        for token in range(262)
        if (text := tokenizer.decode([token])).startswith("ab") and text.endswith("\ufffd")
    )
    stream = tokenizer.stream(tokenizer.encode("ab").tolist())
    assert [stream.step(token) for _ in range(ends)][-1] == ""
    assert stream.rest() == tokenizer.decode([token] * ends).rstrip("\ufffd")


def test_special_tokens_are_no_text(tokenizer):
    """An end of text that is passed on is not shown."""
    hello = tokenizer.encode("na").tolist()
    assert tokenizer.decode([0, *hello, 1]) == "na"
    assert "".join(streamed(tokenizer, [0, *hello, 1])) == "na"


def test_what_is_no_text_is_not_decoded_again_with_each_token(tokenizer, monkeypatch):
    """The library decodes all since the latest text, so it gets no end of text that ends nothing."""
    decoded = []

    class Spied:
        def __init__(self, **settings):
            self._stream = decoders.DecodeStream(**settings)

        def step(self, given, token):
            decoded.append(token)
            return self._stream.step(given, token)

    library = SimpleNamespace(decoders=SimpleNamespace(DecodeStream=Spied))
    monkeypatch.setattr("ge_backend.engines.preprocess.text.tokenizers", library)
    na = tokenizer.encode("na na").tolist()
    ends = [1] * 9
    pieces = streamed(tokenizer, [*ends, *na, *ends, *na, *ends])
    assert "".join(pieces) == tokenizer.decode([*na, *na])
    assert decoded == [*na, *na]


def test_any_tokens_can_be_streamed(tokenizer):
    """A model may draw what no text has: nothing is raised, and whole characters come."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        pieces = streamed(tokenizer, rng.integers(3, 250, 12).tolist())
        assert all(isinstance(piece, str) for piece in pieces)


def test_a_space_behind_a_broken_character_is_not_lost(tmp_path):
    """Where the library's stream has to begin anew, it does so with all that it has not told."""
    byte_fallback().save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(tmp_path / "tokenizer.json")
    (stray,) = tokenizer.encode("你", special=False).tolist()[1:2]
    ids = [*tokenizer.encode("a你").tolist(), stray, *tokenizer.encode("and na").tolist()]
    assert "".join(streamed(tokenizer, ids)) == "a你\ufffd and na"


def test_tokens_that_the_file_puts_around_a_text_are_put(tmp_path):
    """As its post-processor says, without being asked; a limit or padding in it is not heeded."""
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=99)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = open_tokenizer(tmp_path / "tokenizer.json").encode("na na na").tolist()
    assert ids[0] == 0
    assert 3 < len(ids) < 99


def test_other_threads_go_on_while_a_long_text_is_tokenised(tokenizer):
    """Those of the models that share the executor: one prompt does not stop them."""
    ticks, over = [0], threading.Event()

    def tick():
        while not over.wait(0.001):
            ticks[0] += 1

    def during():
        before = ticks[0]
        tokenizer.encode(TEXT * 10_000)
        return ticks[0] - before

    ticking = threading.Thread(target=tick)
    ticking.start()
    assert comes_true(lambda: ticks[0] > 0)
    # A busy machine may give one of the two no turn at times, so most of some texts say it.
    most = sorted(during() for _ in range(3))[1]
    over.set()
    ticking.join()
    assert most > 10


def test_a_text_that_is_no_unicode_is_the_requests_fault(tokenizer):
    """Half of a pair of surrogates has no bytes."""
    with pytest.raises(InvalidRequest, match="cannot be tokenised"):
        tokenizer.encode("\ud800")


@pytest.mark.parametrize("content", ["", "{}", "\0"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    """With what the library says about it."""
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        open_tokenizer(path)


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_a_replacement_character_is_a_letter_like_others(make, tmp_path):
    """At the end of a text it is told apart from half of a letter, also before one."""
    make().save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(tmp_path / "tokenizer.json")
    for text, cut, told in (
        ("a\ufffd", 0, "a\ufffd"),
        ("a\ufffd你", 1, "a\ufffd"),
        ("a你", 1, "a"),
    ):
        ids = tokenizer.encode(text, special=False)
        stream = tokenizer.stream()
        found = "".join(stream.step(token) for token in ids[: len(ids) - cut]) + stream.rest()
        assert found.lstrip() == told


def only_letters():
    """Like GPT-2's: each byte is a letter of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def only_bytes():
    """Like Llama 2's: letters that it does not know are bytes."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "ħ"]
    vocabulary = [(token, -float(number)) for number, token in enumerate(tokens)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


@pytest.mark.parametrize("make", [only_letters, only_bytes])
@pytest.mark.parametrize("text", [LETTER, "\n", "\ufffd", "😀"])
def test_all_tokens_of_a_letter_are_its_bytes(make, text):
    """Each by itself is no letter, unless the letter has one byte."""
    tokenizer = make()
    blocks = [token_bytes(tokenizer, token) for token in tokenizer.encode(text).ids]
    assert b"".join(blocks) == text.encode()


def test_a_token_whose_text_is_something_else_has_none():
    """A letter of a vocabulary that looks like a byte of another kind, and one that is not there."""
    tokenizer = only_bytes()
    assert token_bytes(tokenizer, tokenizer.token_to_id("ħ")) is None
    assert token_bytes(tokenizer, tokenizer.token_to_id("a")) == b"a"
    assert token_bytes(tokenizer, 10**6) is None
