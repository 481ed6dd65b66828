"""One text in the making."""

import numpy as np

from builders.generation import sequence
from ge_text.engine.update import Finish
from ge_text.models.sampling import Sampling


def test_tokens_of_another_engine_are_output_that_has_to_be_computed():
    """A resumed sequence knows its output, has nothing in the cache, and may get the rest."""
    made = sequence(prompt=(5, 6), given=(7, 8, 9), max_output=8)
    assert (made.num_prompt, made.num_output, made.num_tokens, made.num_computed) == (2, 3, 5, 0)
    assert made.remaining == 5
    assert list(made.ids(0, 5)) == [5, 6, 7, 8, 9]


def test_a_sequence_grows_beyond_its_first_room():
    """Tokens are kept whatever their number."""
    made = sequence(prompt=(1,), max_output=500)
    for token in range(400):
        made.append(token % 60)
    assert list(made.ids(0, 401)) == [1, *(token % 60 for token in range(400))]


def test_the_end_is_noticed_with_the_token_that_makes_it():
    """End of text, stop tokens and the limit end a sequence, the first two before the third."""
    made = sequence(max_output=2, eos=(3,), stop_token_ids=(4,))
    assert made.finish() is None
    for token, finish in ((9, None), (3, Finish.STOP)):
        made.append(token)
        assert made.finish() is finish
    stopped = sequence(max_output=9, stop_token_ids=(4,))
    stopped.append(4)
    assert stopped.finish() is Finish.STOP
    full = sequence(max_output=1, eos=(3,))
    full.append(9)
    assert full.finish() is Finish.LENGTH


def test_the_prompts_last_token_ends_nothing():
    """A prompt may close with an end of text; only what was drawn counts."""
    assert sequence(prompt=(5, 3), eos=(3,), max_output=4).num_output == 0
    made = sequence(prompt=(5, 3), eos=(3,), max_output=4)
    made.append(8)
    assert made.finish() is None


def test_ignored_ends_of_text_end_nothing():
    """With ignore_eos only stop tokens and the limit end a sequence."""
    made = sequence(max_output=9, eos=(3,), ignore_eos=True, stop_token_ids=(4,))
    made.append(3)
    assert made.finish() is None
    assert made.ends == {4}


def test_ends_are_forbidden_below_the_least_number_of_tokens():
    """Until min_tokens are drawn no end can be drawn, and none ends the sequence."""
    made = sequence(max_output=9, eos=(3,), stop_token_ids=(4,), min_tokens=2)
    assert sorted(made.sample_row().forbidden) == [3, 4]
    made.append(3)
    assert made.finish() is None
    made.append(9)
    assert made.sample_row().forbidden == ()
    made.append(3)
    assert made.finish() is Finish.STOP


def test_a_row_says_what_drawing_the_next_token_needs():
    """The position is that of the token to be drawn; prompt and output are apart."""
    made = sequence(prompt=(5, 6), given=(7,), sampling=Sampling(seed=9))
    row = made.sample_row()
    assert (row.position, row.sampling.seed) == (3, 9)
    np.testing.assert_array_equal(row.prompt, [5, 6])
    np.testing.assert_array_equal(row.output, [7])


def test_each_sample_has_a_seed_of_its_own():
    """Sample i draws with seed + i, within 64 bits."""
    seeds = [sequence(sample=i, sampling=Sampling(seed=7)).sampling.seed for i in range(3)]
    assert seeds == [7, 8, 9]
    assert sequence(sample=1, sampling=Sampling(seed=2**63 - 1)).sampling.seed == -(2**63)
