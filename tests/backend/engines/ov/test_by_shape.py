"""Bodies for several shapes in one model: each computes its own, on weights that they share."""

from pathlib import Path

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")

from openvino import Type, opset13  # noqa: E402

from ge_backend.engines.ov.by_shape import by_shape, fixed  # noqa: E402
from ge_backend.engines.ov.model import ENGINE_ERRORS, compile_for_cpu  # noqa: E402

WIDTH = 1024
WEIGHTS = np.random.default_rng(0).standard_normal((4 * WIDTH, WIDTH)).astype(np.float32) / WIDTH
BODIES = 12


def layers(weights=WEIGHTS):
    """Return a model: rows, and numbers that are added to them -> their product, and both added."""
    rows = opset13.parameter([-1, weights.shape[1]], Type.f32)
    more = opset13.parameter([-1, 1], Type.f32)
    both = opset13.add(rows, more)
    product = opset13.matmul(both, opset13.constant(weights), False, True)
    return openvino.Model([opset13.result(product), opset13.result(both)], [rows, more])


def held():
    """Return the bytes of this process that are nobody else's, or its part of them."""
    text = Path("/proc/self/smaps_rollup").read_text()
    line = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return 1024 * int(line.split()[1])


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_body_computes_its_own_shape(count):
    """Whichever of them is asked for, in any order."""
    model = layers(WEIGHTS[:16])
    made = by_shape([fixed(model, [(n + 1, WIDTH), (n + 1, 1)]) for n in range(count)])
    compiled = compile_for_cpu(made, precision="f32", threads=1)
    for place in [*range(count), *reversed(range(count))]:
        rows = np.random.default_rng(place).standard_normal((place + 1, WIDTH)).astype(np.float32)
        more = np.full((place + 1, 1), place, np.float32)
        product, both = compiled([np.array(place, np.int32), rows, more]).values()
        np.testing.assert_allclose(product, (rows + more) @ WEIGHTS[:16].T, atol=1e-4)
        np.testing.assert_allclose(both, rows + more, atol=1e-6)


def test_a_body_of_free_sizes_takes_what_the_others_do_not():
    """Among others, in any order, one shape after the other."""
    model = layers(WEIGHTS[:16])
    made = by_shape([fixed(model, [(2, WIDTH), (2, 1)]), layers(WEIGHTS[:16]), model.clone()])
    compiled = compile_for_cpu(made, precision="f32", threads=1)
    for place, count in ((2, 5), (0, 2), (1, 2), (2, 9), (0, 2), (1, 1)):
        rows = np.random.default_rng(count).standard_normal((count, WIDTH)).astype(np.float32)
        more = np.full((count, 1), place, np.float32)
        product, both = compiled([np.array(place, np.int32), rows, more]).values()
        np.testing.assert_allclose(product, (rows + more) @ WEIGHTS[:16].T, atol=1e-4)
        np.testing.assert_allclose(both, rows + more, atol=1e-6)


def test_sizes_that_all_bodies_have_stay_known():
    """Some operators, such as one that looks for boxes of 4 numbers, are not compiled else."""
    boxes = opset13.parameter([-1, -1, 4], Type.f32)
    scores = opset13.parameter([-1, 1, -1], Type.f32)
    most, overlap = opset13.constant(np.int32(9)), opset13.constant(np.float32(0.5))
    kept = opset13.non_max_suppression(
        boxes, scores, max_output_boxes_per_class=most, iou_threshold=overlap
    )
    model = openvino.Model([opset13.result(kept.output(0))], [boxes, scores])
    made = by_shape([fixed(model, [(1, 3, 4), (1, 1, 3)]), model.clone()])
    compiled = compile_for_cpu(made, precision="f32", threads=1)
    for place, count in ((0, 3), (1, 5)):
        given = np.tile(np.array([0, 0, 1, 1], np.float32), (1, count, 1))
        found = compiled([np.array(place, np.int32), given, np.ones((1, 1, count), np.float32)])
        assert found[0].tolist() == [[0, 0, 0]]


def test_a_shape_that_a_model_does_not_take_is_refused():
    """Before anything is compiled."""
    with pytest.raises(ENGINE_ERRORS):
        fixed(layers(WEIGHTS[:16]), [(1, WIDTH + 1), (1, 1)])


def under(operator):
    """Return how many operators an `If` infers types of, in its branches and in theirs."""
    inside = [one for at in (0, 1) for one in operator.get_function(at).get_ops()]
    return len(inside) + sum(under(one) for one in inside if one.get_type_name() == "If")


def test_all_is_looked_through_once(monkeypatch):
    """And not at each input of each operator: Python's lock is held, so nothing else goes on."""
    looked_through, choices = [], []

    class Watched:
        """An `If` that notes how much is looked through whenever it is given something."""

        def __init__(self, operator):
            self.operator = operator
            choices.append(operator)

        def __getattr__(self, name):
            call = getattr(self.operator, name)

            def noted(*given):
                if name in ("set_input", "set_output"):
                    looked_through.append(under(self.operator))
                return call(*given)

            return noted

    if_op = opset13.if_op
    monkeypatch.setattr(opset13, "if_op", lambda condition: Watched(if_op(condition)))
    rows = opset13.parameter([-1, 4], Type.f32)
    end = rows
    for _ in range(600):
        end = opset13.add(end, rows)
    model = openvino.Model([opset13.result(end)], [rows])
    made = by_shape([fixed(model, [(n + 1, 4)]) for n in range(BODIES)])
    assert len(choices) == BODIES - 1
    assert (
        sum(looked_through)
        < 600
        < 600 * BODIES
        < under(made.get_results()[0].input_value(0).get_node())
    )


def test_bodies_share_their_weights():
    """A dozen takes the memory of few copies; compiled for themselves they would take a dozen."""
    model = layers()
    before = held()
    bodies = [fixed(model, [(n + 1, WIDTH), (n + 1, 1)]) for n in range(BODIES)]
    compiled = compile_for_cpu(by_shape(bodies), precision="f32", threads=1)
    for place in range(BODIES):
        rows, more = np.ones((place + 1, WIDTH), np.float32), np.ones((place + 1, 1), np.float32)
        compiled([np.array(place, np.int32), rows, more])
    assert held() - before < 4 * WEIGHTS.nbytes
