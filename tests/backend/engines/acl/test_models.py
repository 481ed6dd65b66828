"""Models, descriptions and datasets through checked calls; each call's use is in test_npu.py."""

import pytest

from acl_simulator import Echo, Ranges, Static, write_om
from ge_backend.engines.acl.models import AclModels
from ge_backend.engines.acl.runtime import AclRuntime
from ge_backend.errors import GraphFailed


@pytest.fixture
def models(sim):
    runtime = AclRuntime(sim)
    runtime.initialise()
    runtime.open_device(0)
    return AclModels(sim, runtime)


def loaded(models, path):
    return models.load(str(path), work=0, work_bytes=0, weights=0, weight_bytes=0)


def live(sim):
    return [kind for kind, _, _ in sim._machine.handles.live() if kind != "context"]


def test_sizes_of_a_file(models, tmp_path):
    """Work memory and weights; no work memory can be planned for ranges."""
    static = write_om(tmp_path / "a.om", Echo(), Static({"x": (4, 16)}), work_bytes=4096)
    free = write_om(tmp_path / "b.om", Echo(), Ranges({"x": ((1, 4), 16)}))
    assert models.sizes(str(static)) == (4096, 0)
    assert models.sizes(str(free)) == (0, 0)


def test_a_description_that_fails_is_forgotten(sim, models, tmp_path):
    """Nothing is left of it, and the error is the call's own."""
    before = live(sim)
    with pytest.raises(GraphFailed, match=r"acl\.mdl\.get_desc failed with 145003"):
        models.describe(99)
    assert live(sim) == before


def test_a_handle_that_is_not_made_is_an_error(sim, models):
    """Calls without a code return 0."""
    sim.fail("mdl.create_desc", 1, message="no room\nTraceBack (most recent call last): x")
    with pytest.raises(GraphFailed, match=r"acl\.mdl\.create_desc returned nothing: .*no room$"):
        models.describe(1)


@pytest.mark.parametrize("call", ["create_data_buffer", "mdl.add_dataset_buffer"])
def test_a_dataset_that_fails_half_way_is_closed(sim, models, call):
    """With the buffers that it has already."""
    before = live(sim)
    sim.fail(call, 100000, after=1)
    with pytest.raises(GraphFailed):
        models.dataset([(64, 64), (128, 64)])
    assert live(sim) == before


def test_a_buffer_can_name_other_memory(models):
    """Its record is kept, not made anew."""
    dataset = models.dataset([(64, 64), (128, 64)])
    models.place(dataset, 1, 256, 32)
    assert [models.placed(dataset, at) for at in (0, 1)] == [64, 256]
    models.close_dataset(dataset)


def test_limits_of_ranges(sim, models, tmp_path):
    """The largest size of each dimension; -1 where it is open."""
    path = write_om(tmp_path / "a.om", Echo(), Ranges({"x": ((1, 8), 16, (2, -1))}))
    description = models.describe(loaded(models, path))
    assert models.input_limits(description, 0) == (8, 16, -1)
    assert models.input_dims(description, 0) == (-1, 16, -1)


def test_a_list_of_gears_that_cannot_be_had_is_not_touched(sim, models, tmp_path):
    """Its slots are not set when the call fails: looking at them would crash the interpreter."""
    from acl_simulator import DimsGears

    path = write_om(tmp_path / "a.om", Echo(), DimsGears({"x": (-1, -1)}, [(1, 8), (2, 8)]))
    description = models.describe(loaded(models, path))
    assert models.dims_gears(description) == [(1, 8), (2, 8)]
    sim.fail("mdl.get_input_dynamic_dims", 100000)
    with pytest.raises(GraphFailed, match="get_input_dynamic_dims"):
        models.dims_gears(description)
    sim.check()
