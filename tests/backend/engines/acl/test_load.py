"""From files to graphs: one file, or a grid of them; how loading fails is in test_npu.py."""

import os
from pathlib import Path

import numpy as np
import pytest

from acl_simulator import BatchGears, Echo, Encoder, MatMul, Ranges, Static, Sums, write_om
from builders.npu import Npu, floats, kinds, run, tokens
from ge_backend.device.base import GraphSource
from ge_backend.device.workspace.pool import Pool
from ge_backend.engines.acl.graph import OmGraph
from ge_backend.engines.acl.range_graph import RangeGraph
from ge_backend.errors import ModelError


def grid(folder: Path, *sizes, stem="model", graph=None):
    """Write a file for each (rows, length), and return any of them."""
    for rows, length in sizes:
        path = folder / f"{stem}.{rows}x{length}.om"
        write_om(path, graph or Sums(), Static({"x": (rows, length)}))
    return path


def test_the_kind_of_graph_follows_from_the_file(npu):
    """Shapes that are listed, or ranges."""
    listed = npu.load(npu.write(Sums(), Static({"x": (2, 4)})))
    free = npu.load(npu.write(Sums(), Ranges({"x": ((1, 9), 4)}), "free.om"))
    assert (type(listed), listed.shape_policy.prepared) == (OmGraph, True)
    assert (type(free), free.shape_policy.prepared, free.shape_policy.fixed) == (
        RangeGraph,
        False,
        (),
    )


@pytest.mark.parametrize(
    ("kind", "plans_ranges"),
    [(kind, plans) for kind in ("range", "unknown", "static_v2") for plans in (True, False)],
)
def test_nothing_is_measured_against_the_pool_where_the_system_manages_work_memory(
    tmp_path, kind, plans_ranges
):
    """Such a graph says that its scratch never lies there; a planned one has its place for good."""
    npu = Npu(tmp_path, plans_ranges=plans_ranges)
    pool = Pool(npu.device.reserve(1 << 20))
    made = kinds(npu.folder)
    npu.load(made[kind][0], pool.workspace("managed"))
    npu.load(made["static"][0], pool.workspace("planned"))
    for holder in ("managed", "planned"):
        placed = pool.place(holder, 1 << 18, bound=False).nbytes
        assert placed < 1 << 18
        assert (placed > 0) == (holder == "planned")
    lease = pool.lease("managed")
    assert lease is not None
    assert lease.ranges == ()
    pool.release(lease)
    npu.close()


def test_a_grid_is_one_model(npu):
    """Whichever file is named: all shapes run, each in its own file."""
    graph = npu.load(grid(npu.folder, (1, 8), (4, 8), (4, 16)))
    assert [shapes["x"] for shapes in graph.shape_policy.fixed] == [(1, 8), (4, 8), (4, 16)]
    assert graph.signature.input("x").describe() == "FP32 [batch, x.1]"
    for shape in ((4, 16), (1, 8), (4, 8)):
        x = floats(*shape)
        assert np.array_equal(run(graph, x=x)["y"], x.sum(axis=1, dtype=np.float32))
    names = [name for name, _ in npu.sim.executions]
    assert names == ["model.4x16", "model.1x8", "model.4x8"]


def test_a_grid_has_as_much_memory_as_its_largest_file(npu):
    """Work memory and slots are shared, because its files take turns."""
    graph = npu.load(grid(npu.folder, (64, 256)))
    alone = {block.size for block in npu.sim.allocations()}
    graph.close()
    many = [(rows, length) for rows in (8, 16, 32, 64) for length in (64, 128, 256)]
    npu.load(grid(npu.folder, *many))
    assert {block.size for block in npu.sim.allocations()} == alone


def test_a_grid_has_one_copy_of_equal_weights(npu):
    """ACL writes a file's weights to where it is told; equal ones may lie on each other."""
    graph = MatMul(rows=64, columns=64)
    many = [(rows, length) for rows in (1, 2, 4, 8) for length in (3, 5)]
    for rows, length in many:
        path = npu.folder / f"model.{rows}x{length}.om"
        write_om(path, graph, Static({"x": (rows, length, 64)}))
    loaded = npu.load(path)
    weights = 64 * 64 * 4
    assert sum(block.size == weights for block in npu.sim.allocations()) == 1
    for rows, length in many:
        x = floats(rows, length, 64)
        assert np.array_equal(run(loaded, x=x)["y"], graph.expected(x=x)["y"])


def test_files_with_other_weights_have_their_own(npu):
    """Equally many bytes are not the same bytes."""
    for rows, seed in ((1, 1), (2, 2), (4, 1)):
        path = npu.folder / f"model.{rows}.om"
        write_om(path, MatMul(rows=64, columns=64, seed=seed), Static({"x": (rows, 64)}))
    npu.load(path)
    assert sum(block.size == 64 * 64 * 4 for block in npu.sim.allocations()) == 2


def test_files_of_another_stem_are_another_model(npu):
    """`other.1x8.om` is none of `model`."""
    grid(npu.folder, (1, 8), stem="other")
    graph = npu.load(grid(npu.folder, (2, 8)))
    assert graph.shape_policy.fixed == ({"x": (2, 8)},)


def test_a_grid_of_several_axes(npu):
    """Images: rows, height, width."""
    for height, width in ((8, 8), (8, 16), (32, 4)):
        path = npu.folder / f"model.2x{height}x{width}.om"
        write_om(path, Echo(), Static({"x": (2, 3, height, width)}))
    graph = npu.load(path)
    assert graph.signature.input("x").describe() == "FP32 [batch, 3, x.2, x.3]"
    x = floats(2, 3, 8, 16)
    assert np.array_equal(run(graph, x=x)["y"], x)


def test_a_file_that_varies_has_no_place_in_a_grid(npu):
    """Its name says one shape."""
    for shapes in (BatchGears({"x": (-1, 8)}, [(1,), (2,)]), Ranges({"x": ((1, 4), 8)})):
        write_om(npu.folder / "model.2x8.om", Sums(), shapes)
        with pytest.raises(ModelError, match=r"model\.2x8\.om has dimensions that vary"):
            npu.load(npu.folder / "model.2x8.om")


def test_files_of_different_models_are_refused(npu):
    """Same names, other types or ranks."""
    grid(npu.folder, (1, 8))
    write_om(npu.folder / "model.2x8.om", Sums("FP16"), Static({"x": (2, 8)}))
    with pytest.raises(ModelError, match=r"not of one model: one has x FP32.*another x FP16"):
        npu.load(npu.folder / "model.1x8.om")


def test_a_name_that_is_not_true_is_refused(npu):
    """The name says 4 rows, the file has 2."""
    write_om(npu.folder / "model.4x8.om", Sums(), Static({"x": (2, 8)}))
    with pytest.raises(ModelError, match="say 4, which is not a first dimension"):
        npu.load(npu.folder / "model.4x8.om")


def test_another_file_of_the_grid_makes_another_source(npu):
    """Adding, changing or removing one, or the names beside them, is noticed."""
    path = grid(npu.folder, (1, 8), (2, 8))
    stamps = [GraphSource.of(path).stamp]
    grid(npu.folder, (4, 8))
    stamps.append(GraphSource.of(path).stamp)
    os.utime(npu.folder / "model.1x8.om", (1, 1))
    stamps.append(GraphSource.of(path).stamp)
    (npu.folder / "model.om.json").write_text("{}")
    stamps.append(GraphSource.of(path).stamp)
    (npu.folder / "model.4x8.om").unlink()
    stamps.append(GraphSource.of(path).stamp)
    assert len(set(stamps)) == 5
    (npu.folder / "other.9x9.om").touch()
    assert GraphSource.of(path).stamp == stamps[-1]


def test_names_of_dimensions_beside_the_file(npu):
    """An `.om` keeps none."""
    path = npu.write(
        Encoder(),
        BatchGears({"input_ids": (-1, 16), "attention_mask": (-1, 16)}, [(1,), (4,)]),
        axes={"input_ids": ["rows", "sequence"]},
    )
    graph = npu.load(path)
    assert graph.signature.input("attention_mask").axes[0] == "rows"
    assert graph.signature.output("y").describe() == "FP32 [rows, 8]"
    inputs = tokens(4, 16)
    assert np.array_equal(run(graph, **inputs)["y"], Encoder().expected(**inputs)["y"])


def test_names_that_do_not_fit_leave_nothing_behind(npu):
    """The file was loaded already when they were read."""
    path = npu.write(MatMul(), Static({"x": (2, 8)}), axes={"x": ["batch"]})
    before = npu.sim.allocations()
    with pytest.raises(ModelError, match="2 dimensions"):
        npu.load(path)
    assert npu.sim.allocations() == before
