"""The encoder's ONNX file with its mask made inside, for a server that cannot make inputs."""

from __future__ import annotations

from pathlib import Path

__all__ = ["with_mask_inside"]


def with_mask_inside(source: Path, target: Path) -> None:
    """Write a copy that takes `input_ids` alone; the mask is ones of the same shape."""
    import onnx  # noqa: PLC0415 - the other rivals are imported without it
    from onnx import helper  # noqa: PLC0415

    model = onnx.load(source)
    graph = model.graph
    ids = next(given for given in graph.input if given.name == "input_ids")
    mask = next(given for given in graph.input if given.name == "attention_mask")
    one = helper.make_tensor("one", mask.type.tensor_type.elem_type, [1], [1])
    made = [
        helper.make_node("Shape", [ids.name], ["ids_shape"]),
        helper.make_node("ConstantOfShape", ["ids_shape"], [mask.name], value=one),
    ]
    graph.input.remove(mask)
    for node in reversed(made):
        graph.node.insert(0, node)
    onnx.save(model, target)
