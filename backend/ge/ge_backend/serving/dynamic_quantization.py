"""A warning of files whose rows influence each other: quantised in one range over a whole run."""

from __future__ import annotations

import logging

from ge_backend.model.config.model import ModelConfig
from ge_backend.model.files.model_file import find_model_file
from ge_backend.model.files.onnx_file import onnx_operators

__all__ = ["warn_of_dynamic_quantization"]

log = logging.getLogger(__name__)

# ONNX's DynamicQuantizeLinear, and ONNX Runtime's DynamicQuantizeMatMul and DynamicQuantizeLSTM.
DYNAMIC = "DynamicQuantize"


def warn_of_dynamic_quantization(config: ModelConfig) -> None:
    """Say so where a model's answers depend on what runs beside them, and what helps.

    Raises:
        ModelError: there is no model file, or it is called `.onnx` and is none.
    """
    path = find_model_file(config.directory, config.filename, config.device)
    if config.max_batch_size <= 1 or path.suffix != ".onnx":
        return
    dynamic = sorted(name for name in onnx_operators(path) if name.startswith(DYNAMIC))
    if dynamic:
        log.warning(
            "%s has %s, which takes one range of values over all rows of a run, padding included: "
            "answers differ a little with what runs beside them; set max_batch_size to 1, so that "
            "each row runs alone, or serve a file that is not quantised, or statically",
            path,
            " and ".join(dynamic),
        )
