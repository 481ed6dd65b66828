"""A graph of listed shapes; what it computes and how it fails is in test_npu.py."""

import threading

import numpy as np
import pytest

from acl_simulator import Echo, ImageGears
from builders.npu import encoder, floats, kinds, run, tokens
from ge_backend.errors import GraphFailed


def test_the_shapes_are_the_gears(npu):
    """In the file's order, with batch dimension, by input name."""
    graph = npu.load(encoder(npu.folder))
    assert [dict(shapes) for shapes in graph.shape_policy.fixed] == [
        {"input_ids": shape, "attention_mask": shape} for shape in ((1, 16), (4, 16), (4, 32))
    ]


def test_another_shape_is_refused_with_those_that_run(npu):
    """Never rounded up here: padding is the planner's."""
    graph = npu.load(encoder(npu.folder))
    for action in (lambda given: run(graph, **given), graph.prepare):
        with pytest.raises(
            GraphFailed, match=r"not compiled for input_ids 2x16.*it runs input_ids 1x16"
        ):
            action(tokens(2, 16))
    assert npu.sim.executions == []


def test_inputs_that_only_fit_one_by_one_are_refused(npu):
    """A gear is the shapes of all inputs together."""
    graph = npu.load(encoder(npu.folder))
    inputs = {**tokens(4, 16), "attention_mask": tokens(4, 32)["attention_mask"]}
    with pytest.raises(GraphFailed, match="not compiled for"):
        run(graph, **inputs)


def test_outputs_are_cut_to_the_gear(npu):
    """The device's slot is as large as the largest gear's; what comes back is not."""
    gears = ImageGears({"x": (1, 3, -1, -1)}, [(64, 64), (8, 4)])
    graph = npu.load(npu.write(Echo(), gears))
    x = floats(1, 3, 8, 4)
    assert np.array_equal(run(graph, x=x)["y"], x)


def test_a_model_is_never_in_flight_twice(npu):
    """Whoever comes second waits, although there is a stream for him."""
    graph = npu.load(encoder(npu.folder))
    results = []
    with npu.sim.paused():
        threads = [
            threading.Thread(target=lambda: results.append(run(graph, **tokens(4, 32))["y"]))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        assert npu.sim.wait_until(lambda: any("run of" in t for t in npu.sim.in_flight()))
        assert sum("run of" in task for task in npu.sim.in_flight()) == 1
    for thread in threads:
        thread.join()
    assert np.array_equal(results[0], results[1])


def test_two_graphs_run_side_by_side(npu):
    """Each has a stream, and work memory of its own."""
    first = npu.load(encoder(npu.folder))
    path, inputs, _ = kinds(npu.folder)["static"]
    second = npu.load(path)
    with npu.sim.paused():
        threads = [
            threading.Thread(target=run, args=(first,), kwargs=tokens(4, 32)),
            threading.Thread(target=run, args=(second,), kwargs=inputs),
        ]
        for thread in threads:
            thread.start()
        assert npu.sim.wait_until(
            lambda: sum("run of" in task for task in npu.sim.in_flight()) == 2
        )
    for thread in threads:
        thread.join()


def test_closing_waits_for_the_run(npu):
    """A graph is closed between two runs, and may be closed twice."""
    devices = len(npu.sim.allocations())
    graph = npu.load(encoder(npu.folder))
    with npu.sim.paused():
        running = threading.Thread(target=run, args=(graph,), kwargs=tokens(1, 16))
        running.start()
        assert npu.sim.wait_until(lambda: bool(npu.sim.in_flight()))
        closing = threading.Thread(target=graph.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
    running.join()
    closing.join()
    graph.close()
    assert len(npu.sim.allocations()) == devices
