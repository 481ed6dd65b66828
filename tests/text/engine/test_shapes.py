"""The shapes of a model's steps, from what is configured."""

import pytest

from ge_backend.errors import ConfigError
from ge_text.engine.settings import EngineSettings, SpeculationMode
from ge_text.engine.shapes import file_shapes, rule_shapes, step_shapes


def test_lists_make_a_product_per_kind():
    """Decoding has every batch, prompts every query, both every context that holds it."""
    settings = EngineSettings(batch_buckets="1,4", query_buckets="16,64", context_buckets="1,2,4")
    lists = rule_shapes(settings, 64, 16)
    assert lists.decode == ((1, 1, 1), (1, 1, 2), (1, 1, 4), (4, 1, 1), (4, 1, 2), (4, 1, 4))
    assert lists.prompt == ((1, 16, 1), (1, 16, 2), (1, 16, 4), (1, 64, 4))


def test_defaults_cover_every_step():
    """Nothing that the settings allow is outside of the default shapes."""
    settings = EngineSettings(max_num_seqs=5, max_num_batched_tokens=40)
    lists = rule_shapes(settings, 100, 8)
    assert (5, 1, 13) in lists.decode
    assert (1, 40, 13) in lists.prompt


def test_the_default_context_doubles_in_two_steps():
    """With powers of two attention would read up to twice what it has to."""
    lists = rule_shapes(EngineSettings(batch_buckets="1"), 160, 8)
    assert [context for _, _, context in lists.decode] == [1, 2, 3, 4, 6, 8, 12, 16, 20]


def test_guesses_are_verified_in_shapes_of_their_own():
    """A query of the token itself and so many drafts, for every batch."""
    settings = EngineSettings(
        speculation=SpeculationMode.NGRAM,
        num_speculative_tokens=3,
        batch_buckets="1,4",
        context_buckets="4",
    )
    assert {(1, 4, 4), (4, 4, 4)} <= set(rule_shapes(settings, 64, 16).prompt)


def test_rules_of_encoders_work_here_too():
    """The texts are those of `buckets.<axis>` everywhere."""
    settings = EngineSettings(
        batch_buckets="linear(1, 2, 6)", context_buckets="exponential(1,1,8,4)"
    )
    lists = rule_shapes(settings, 128, 16)
    assert sorted({batch for batch, _, _ in lists.decode}) == [1, 2, 4, 6]
    assert sorted({context for _, _, context in lists.decode}) == [1, 2, 4, 8]


def test_sizes_above_what_there_can_be_are_clipped():
    """No shape is made ready that no step will have."""
    settings = EngineSettings(max_num_seqs=3, batch_buckets="1,8", context_buckets="99")
    lists = rule_shapes(settings, 32, 16)
    assert {batch for batch, _, _ in lists.decode} == {1, 3}
    assert {context for _, _, context in lists.decode} == {2}


def test_a_text_that_is_neither_is_refused_by_name():
    """The error names the parameter."""
    with pytest.raises(ConfigError, match=r"buckets\.query"):
        rule_shapes(EngineSettings(query_buckets="many"), 32, 16)


def test_a_file_lists_both_kinds(tmp_path):
    """A query of 1 is decoding, everything else a prompt's, its batch too."""
    path = tmp_path / "buckets.txt"
    path.write_text("([1, 8], 1, [4, 8])\n(2, [64, 129], [4, 2])  # two prompts\n")
    lists = file_shapes(path, 16)
    assert lists.decode == ((1, 1, 4), (1, 1, 8), (8, 1, 4), (8, 1, 8))
    assert lists.prompt == ((2, 64, 4),)


@pytest.mark.parametrize(
    ("line", "entry"),
    [("(1, 256, 4)", "(1, 256, 4)"), ("(1, [256, 512], range(4, 7))", "(1, 256, 4)")],
)
def test_a_context_that_cannot_hold_its_query_is_refused(tmp_path, line, entry):
    """No step could run in it; the error names the line, the entry, and what would be enough."""
    path = tmp_path / "buckets.txt"
    path.write_text(f"(4, 1, 4)\n(1, 128, 4)\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        file_shapes(path, 32)
    assert str(caught.value) == (
        f"{path}, line 3: {line!r}: {entry}: context 4, in blocks of 32 tokens, holds 128, the "
        "query is 256; expected 8 at least, as a context counts the step's own tokens"
    )


@pytest.mark.parametrize(
    ("line", "missing"), [("(1, 64, 4)\n", "decoding"), ("(4, 1, 4)\n", "prompts")]
)
def test_a_file_without_one_kind_is_refused(tmp_path, line, missing):
    """Whoever lists buckets for prompts alone could not go on behind them, nor begin without."""
    path = tmp_path / "buckets.txt"
    path.write_text(line)
    with pytest.raises(ConfigError, match=f"no bucket for {missing}"):
        file_shapes(path, 16)


@pytest.mark.parametrize("most", [2, 3, 7, 20, 200])
def test_no_more_shapes_than_graphs(most):
    """Sizes are left out evenly; the largest ones stay, so that every step has a shape."""
    lists = rule_shapes(EngineSettings(max_num_seqs=8, max_graphs=most), 256, 16)
    assert len(lists) <= most
    assert (8, 1, 16) in lists.decode
    assert max(lists.prompt) == (1, 256, 16)


def test_a_single_graph_is_too_few():
    """Decoding and prompts have a shape each at least."""
    with pytest.raises(ConfigError, match="max_graphs is 1"):
        rule_shapes(EngineSettings(max_graphs=1), 64, 16)


def test_a_file_takes_the_place_of_rules(tmp_path):
    """And is not thinned: each line was somebody's intention."""
    path = tmp_path / "buckets.txt"
    path.write_text("(4, 1, 2)\n(1, 16, 2)\n")
    settings = EngineSettings(bucket_file=path, max_graphs=2)
    assert step_shapes(settings, 32, 16).decode == ((4, 1, 2),)
    assert step_shapes(EngineSettings(batch_buckets="2"), 32, 16).decode[0] == (2, 1, 1)
    with pytest.raises(ConfigError, match="lists 2 buckets, more than max_graphs"):
        step_shapes(EngineSettings(bucket_file=path, max_graphs=1), 32, 16)
