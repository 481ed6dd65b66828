"""How often a model was loaded anew is counted in the runtime folder."""

from ge_backend.executor.process.reloads import note_reload, times_reloaded


def test_reloads_are_counted_by_model(tmp_path):
    """Nothing was before the first; models do not share a count."""
    assert times_reloaded(tmp_path / "run", "m") == 0
    assert [note_reload(tmp_path / "run", "m") for _ in range(2)] == [1, 2]
    assert note_reload(tmp_path / "run", "other") == 1
    assert times_reloaded(tmp_path / "run", "m") == 2


def test_a_count_takes_no_room_on_a_disk(tmp_path):
    """One that is full has none, and a model is loaded anew and counted all the same."""
    note_reload(tmp_path, "m")
    assert next(tmp_path.rglob("m")).stat().st_blocks == 0


def test_a_count_that_cannot_be_kept_is_no_reason_not_to_load_a_model(tmp_path, caplog):
    """The folder may be gone, or on a disk that cannot be written any more."""
    (tmp_path / "run").touch()
    assert note_reload(tmp_path / "run", "m") == 1
    assert times_reloaded(tmp_path / "run", "m") == 0
    assert "ge_model_heals of model 'm' stays as it was: " in caplog.text
