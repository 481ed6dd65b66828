"""Pairs of texts are cut as the library cuts them, and long ones in no more time than they take."""

import time

import pytest

tokenizers = pytest.importorskip("tokenizers")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from builders.families import FAMILIES, family_tokenizer  # noqa: E402
from builders.text import build_tokenizer  # noqa: E402
from ge_backend.engines.preprocess.pairs import cut_pair, shares  # noqa: E402

TEXTS = st.lists(st.sampled_from(["the", "cat", "sat", "x"]), max_size=20).map(" ".join)


def bert():
    """A tokenizer whose special tokens are put around by BERT's own step."""
    made = build_tokenizer()
    ends = [(token, made.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    made.post_processor = tokenizers.processors.BertProcessing(*ends)
    return made


TOKENIZERS = {
    "words": build_tokenizer(),
    "bare": build_tokenizer(special=False),
    "bert": bert(),
    **{name: family_tokenizer(name) for name in FAMILIES},
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    pair=st.tuples(TEXTS, TEXTS),
    most=st.integers(5, 30),
    left=st.booleans(),
    special=st.booleans(),
)
def test_a_pair_is_cut_as_the_library_does(name, pair, most, left, special):
    """Whatever the special tokens are, whichever text is longer, and from either side."""
    tokenizer = TOKENIZERS[name]
    tokenizer.no_padding()
    tokenizer.enable_truncation(most, direction="left" if left else "right")
    (expected,) = tokenizer.encode_batch_fast([pair], add_special_tokens=special)
    tokenizer.no_truncation()
    (whole,) = tokenizer.encode_batch_fast([pair], add_special_tokens=special)
    assert cut_pair(whole, most, left=left) == (expected.ids, expected.type_ids)
    assert cut_pair(whole, 0, left=left) == (whole.ids, whole.type_ids)


def test_what_stays_of_each_is_its_share():
    """The longer one is cut first; where both are, the odd token is the longer one's."""
    assert shares(3, 4, 7) == (3, 4)
    assert shares(2, 9, 7) == (2, 5)
    assert shares(9, 8, 7) == (4, 3)
    assert shares(8, 8, 7) == (3, 4)


def test_long_pairs_take_time_by_their_length():
    """Four times the words: sixteen times the time is what the library would take, and memory."""
    tokenizer = TOKENIZERS["words"]
    tokenizer.no_padding()

    def seconds(words):
        text = "cat " * words
        begin = time.process_time()
        (whole,) = tokenizer.encode_batch_fast([(text, text)])
        assert len(cut_pair(whole, 8, left=False)[0]) == 8
        return time.process_time() - begin

    seconds(2_000)
    short, long = (min(seconds(words) for _ in range(3)) for words in (20_000, 80_000))
    assert long < 10 * short
