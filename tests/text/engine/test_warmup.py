"""Shapes are made ready and measured before anybody waits."""

from fakes.language_model import FakeLanguageModel
from ge_text.engine.plan import ShapeLists
from ge_text.engine.warmup import prepare_kinds, prepared_shapes

LISTS = ShapeLists(((1, 1, 1), (4, 1, 1)), ((1, 8, 2), (1, 16, 4)))


def warmed(seconds=None):
    """Prepare on a model whose steps take what `seconds` says per shape."""
    now, prepared, progress = [0.0], [], []

    def take(batch):
        group = batch.groups[0]
        shape = (group.rows, group.query, group.tables.shape[1])
        now[0] += (seconds or {}).get(shape, 1.0)

    model = FakeLanguageModel(block_size=4, on_step=take)
    model.open_cache(9)
    model.prepare = prepared.append
    shapes = prepared_shapes(model, LISTS, lambda: now[0], lambda *done: progress.append(done))
    return shapes, prepared, progress, model


def test_every_shape_is_prepared_once_the_largest_first():
    """Memory that large shapes need is found before small ones have taken it."""
    _, prepared, progress, _ = warmed()
    assert prepared == [(1, 16, 4), (1, 8, 2), (4, 1, 1), (1, 1, 1)]
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_cheapest_shape_is_the_one_that_measured_so():
    """What a run took decides, not what it looks like."""
    shapes, *_ = warmed({(1, 1, 1): 5.0, (4, 1, 1): 1.0})
    assert shapes.covering((1, 1, 1)) == (4, 1, 1)
    shapes, *_ = warmed({(1, 1, 1): 1.0, (4, 1, 1): 5.0})
    assert shapes.covering((1, 1, 1)) == (1, 1, 1)


def test_warming_up_writes_to_nobodys_block():
    """It may run beside nothing, but leaves the cache as if it had not been."""
    *_, model = warmed()
    assert all(not batch.slots.any() for batch in model.steps)
    assert all(not group.lengths.any() for batch in model.steps for group in batch.groups)


def test_a_model_of_any_shape_runs_a_piece_of_a_prompt_behind_others():
    """Beside one row of one token; what it writes and reads is padding's block."""
    prepared, steps, model = [], [], FakeLanguageModel(block_size=4)
    model.prepare, model.step = prepared.append, steps.append
    prepare_kinds(model)
    assert prepared == [(1, 1, 1)]
    ((group,),) = [batch.groups for batch in steps]
    assert (group.rows, group.query, group.lengths.tolist()) == (1, 4, [8])
    assert not group.tables.any()
    assert not steps[0].slots.any()
