"""What an ONNX file says that OpenVINO reads over: its answers would differ, and nothing says so.

Found with OpenVINO 2026.4 by the ONNX project's own examples of every operator (onnx 1.23,
`onnx.backend.test`), each computed with fixed and with free sizes, and by scripts of `findings/`.
The list ages with both of them: what else it leaves out shows where its answers are compared with
another engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ge_backend.errors import Unsupported
from ge_backend.model.files.onnx_file import OnnxNode, onnx_nodes, onnx_opset

__all__ = ["check_nothing_dropped"]

# The newest operators that were looked at. Files of newer ones may have further attributes.
EXAMINED = 28
# The domain of ONNX Runtime's own operators, in front of which it stands below.
RUNTIME = "com.microsoft"
RECURRENT = ("LSTM", "GRU", "RNN")

# By operator and attribute, the only value that is computed: others are taken for it.
COMPUTED: Mapping[str, Mapping[str, int | str]] = {
    **{name: {"layout": 0, "input_forget": 0} for name in RECURRENT},
    "Resize": {"antialias": 0, "exclude_outside": 0, "keep_aspect_ratio_policy": "stretch"},
    "DFT": {"onesided": 0},
    "Attention": {"left_window_size": -1, "right_window_size": -1},
    "SpaceToDepth": {"mode": "DCR"},
    "RoiAlign": {"mode": "avg"},
    "Unique": {"sorted": 1},
    f"{RUNTIME}:RotaryEmbedding": {"rotary_embedding_dim": 0},
}
# By operator and attribute, what is left out wherever that is there: of an `output_shape` a free
# batch has the padding cut at the other end.
STATED: Mapping[str, Mapping[str, str]] = {
    "ConvTranspose": {"output_shape": "the place of output_shape"},
    f"{RUNTIME}:Attention": {"scale": "scale", "mask_filter_value": "mask_filter_value"},
}
# By operator and place of an input, what is left out wherever that is there.
GIVEN: Mapping[str, Mapping[int, str]] = {
    **{name: {7: "its peepholes"} for name in RECURRENT},
    "DFT": {2: "its axis, where that is an input,"},
    "MatMulNBits": {4: "its g_idx"},
    "QLinearLeakyRelu": {0: "the zero point"},
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
        left_out = _left_out(node)
        if left_out:
            raise Unsupported(
                f"{path}: OpenVINO leaves out {left_out} of the {node.operator} {node.name!r}; "
                "set the parameter 'engine' to 'onnxruntime', with precision 'origin'"
            )


def _left_out(node: OnnxNode) -> str:
    """Return what OpenVINO leaves out of an operator, "" for nothing."""
    for name in (node.operator, f"{node.domain}:{node.operator}"):
        for attribute, computed in COMPUTED.get(name, {}).items():
            value = node.attributes.get(attribute, computed)
            if value != computed:
                return f"{attribute}={value}"
        for attribute, left_out in STATED.get(name, {}).items():
            if attribute in node.stated:
                return left_out
        for place, left_out in GIVEN.get(name, {}).items():
            if any(node.inputs[place : place + 1]):
                return left_out
    padding = str(node.attributes.get("auto_pad"))
    if node.operator == "ConvTranspose" and padding.startswith("SAME"):
        return f"auto_pad={padding}"
    both = ("ceil_mode", "count_include_pad")
    if node.operator == "AveragePool" and all(node.attributes.get(name, 0) for name in both):
        return " beside ".join(f"{name}=1" for name in both)
    return ""
