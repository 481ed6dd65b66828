"""How often a model was loaded anew is counted in the runtime folder."""

from ge_backend.executor.process.heals import note_heal, times_healed


def test_heals_are_counted_by_model(tmp_path):
    """Nothing was before the first; models do not share a count."""
    assert times_healed(tmp_path / "run", "m") == 0
    assert [note_heal(tmp_path / "run", "m") for _ in range(2)] == [1, 2]
    assert note_heal(tmp_path / "run", "other") == 1
    assert times_healed(tmp_path / "run", "m") == 2


def test_a_count_that_is_none_counts_as_none(tmp_path):
    """A half-written file is no reason not to load a model."""
    note_heal(tmp_path, "m")
    next(tmp_path.rglob("m")).write_text("?")
    assert times_healed(tmp_path, "m") == 0
