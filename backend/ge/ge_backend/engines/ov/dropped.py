"""What an ONNX file says that OpenVINO reads over: its answers would differ, and nothing says so.

Found with OpenVINO 2026.4 by the ONNX project's own examples of every operator (onnx 1.23,
`onnx.backend.test`), each computed with fixed and with free sizes, and by scripts of `findings/`.
The list ages with both of them: what else it leaves out shows where its answers are compared with
another engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ge_backend.errors import Unsupported
from ge_backend.model.files.onnx_file import OnnxNode, onnx_nodes, onnx_opset

__all__ = ["check_nothing_dropped"]

# The newest operators that were looked at. Files of newer ones may have further attributes.
EXAMINED = 28
# By place, those inputs of an operator that are not looked at.
PEEPHOLES, DFT_AXIS, GROUPS = 7, 2, 4
# The domain of ONNX Runtime's own operators.
RUNTIME = "com.microsoft"


def _recurrent(node: OnnxNode) -> str:
    if node.attributes.get("layout", 0):
        return "layout=1"
    if node.attributes.get("input_forget", 0):
        return "input_forget=1"
    return "its peepholes" if _is_given(node, PEEPHOLES) else ""


def _resize(node: OnnxNode) -> str:
    for name in ("antialias", "exclude_outside"):
        if node.attributes.get(name, 0):
            return f"{name}=1"
    policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
    return "" if policy == "stretch" else f"keep_aspect_ratio_policy={policy}"


def _transform(node: OnnxNode) -> str:
    if _is_given(node, DFT_AXIS):
        return "its axis, where that is an input,"
    return "onesided=1" if node.attributes.get("onesided", 0) else ""


def _attention(node: OnnxNode) -> str:
    if node.domain == RUNTIME:
        return next((name for name in ("scale", "mask_filter_value") if name in node.stated), "")
    names = ("left_window_size", "right_window_size")
    windows = [name for name in names if node.attributes.get(name, -1) != -1]
    return windows[0] if windows else ""


def _to_depth(node: OnnxNode) -> str:
    mode = node.attributes.get("mode", "DCR")
    return "" if mode == "DCR" else f"mode={mode}"


def _average(node: OnnxNode) -> str:
    both = node.attributes.get("ceil_mode", 0) and node.attributes.get("count_include_pad", 0)
    return "ceil_mode=1 beside count_include_pad=1" if both else ""


def _regions(node: OnnxNode) -> str:
    return "mode=max" if node.attributes.get("mode", "avg") == "max" else ""


def _transposed(node: OnnxNode) -> str:
    """Say whether it has `output_shape`: with a free batch the padding is cut at the other end."""
    return "the place of output_shape" if "output_shape" in node.stated else ""


def _unique(node: OnnxNode) -> str:
    return "" if node.attributes.get("sorted", 1) else "sorted=0"


def _rotary(node: OnnxNode) -> str:
    partial = node.domain == RUNTIME and node.attributes.get("rotary_embedding_dim", 0)
    return f"rotary_embedding_dim={partial}" if partial else ""


def _grouped(node: OnnxNode) -> str:
    return "its g_idx" if _is_given(node, GROUPS) else ""


def _leaky(_: OnnxNode) -> str:
    return "the zero point"


def _is_given(node: OnnxNode, place: int) -> bool:
    return len(node.inputs) > place and bool(node.inputs[place])


# What of an operator is left out, "" for nothing.
LEFT_OUT: Mapping[str, Callable[[OnnxNode], str]] = {
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Resize": _resize,
    "DFT": _transform,
    "Attention": _attention,
    "SpaceToDepth": _to_depth,
    "AveragePool": _average,
    "RoiAlign": _regions,
    "ConvTranspose": _transposed,
    "Unique": _unique,
    "RotaryEmbedding": _rotary,
    "MatMulNBits": _grouped,
    "QLinearLeakyRelu": _leaky,
}


def check_nothing_dropped(path: Path) -> None:
    """See that OpenVINO computes all that an `.onnx` file says, as far as that is known.

    Raises:
        Unsupported: it does not; says what it leaves out.
        ModelError: the file is no ONNX model.
    """
    opset = onnx_opset(path)
    if opset > EXAMINED:
        raise Unsupported(
            f"{path} has operators of opset {opset}; OpenVINO reads those newer than {EXAMINED} as "
            "older ones, without their new attributes; export it for an older opset, or set the "
            "parameter 'engine' to 'onnxruntime'"
        )
    for node in onnx_nodes(path):
        look = LEFT_OUT.get(node.operator)
        left_out = look(node) if look is not None else ""
        if left_out:
            raise Unsupported(
                f"{path}: OpenVINO leaves out {left_out} of the {node.operator} {node.name!r}; "
                "set the parameter 'engine' to 'onnxruntime', with precision 'origin'"
            )
