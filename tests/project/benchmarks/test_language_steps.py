"""Steps of decoding are measured on the same batch for all forms of a decoder."""

import sys

import pytest
from tools.probes import language_steps
from tools.probes.graph_steps import SMOLLM2
from tools.probes.language_steps import COLUMNS, decoding_batch, measure

from builders.language import quiet

TINY = {
    **SMOLLM2,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "vocab_size": 50,
}


def test_a_batch_has_one_new_token_behind_the_cached_ones():
    """Rows own blocks of their own; the new token's slot is behind the last cached one."""
    batch = decoding_batch(3, 40)
    (group,) = batch.groups
    assert group.tables.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert group.lengths.tolist() == [41, 41, 41]
    assert batch.slots.tolist() == [2 * 32 + 8, 4 * 32 + 8, 6 * 32 + 8]
    assert len(batch.rows) == len(batch.sampled) == 3


@pytest.mark.parametrize("precision", ["FP32", "BF16"])
def test_every_column_is_measured(precision):
    """One line for each batch size."""
    with quiet():
        found = dict(measure(TINY, precision, [1, 3], cached=40, rounds=1))
    assert list(found) == [1, 3]
    assert all(times.keys() == set(COLUMNS) for times in found.values())
    assert all(seconds >= 0 for times in found.values() for seconds in times.values())


def test_the_table_is_printed(monkeypatch, capsys):
    """What was asked for stands above it."""
    given = ["", "--batch", "2", "--cached", "33", "--rounds", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", [*given, "--precision", "FP32"])
    monkeypatch.setattr(language_steps, "SMOLLM2", TINY)
    monkeypatch.setattr(language_steps.time, "process_time", language_steps.time.perf_counter)
    with quiet():
        language_steps.main()
    out = capsys.readouterr().out
    assert "33 cached tokens, 1 threads" in out
    assert "FP32 x 2" in out
