"""Filling in what config.pbtxt leaves out: inputs, outputs, batching, from the model file.

Triton calls this in a short-lived process before the instances start. It asks the executor, which
keeps the graph for the instance that comes next, so nothing is loaded twice.
Source: python_backend r24.10 README, "auto_complete_config"; that `as_dict()` is live, and which
edits core takes back, was tested on tritonserver 2.51.
"""

from __future__ import annotations

import os
from typing import Any

from ge_backend.config.model import ModelConfig
from ge_backend.device.files.checkpoint import is_checkpoint
from ge_backend.host.logs import install_handler
from ge_backend.host.version_folder import version_folder
from ge_backend.layout.text_tensors import completed_for_text
from ge_backend.serving.connect import complete_document

__all__ = ["complete_config"]


def complete_config(config: Any) -> Any:
    """Return the host's configuration object with inputs, outputs and batching filled in.

    A configuration that names its inputs and outputs is left as it is, and no executor is asked.
    """
    given = config.as_dict()
    install_handler(str(given["name"]))
    directory = version_folder(given)
    ours = ModelConfig.read(
        given, directory=directory, version=directory.name, environment=os.environ
    )
    if is_checkpoint(directory, ours.filename):
        given.update(completed_for_text(given))
        given.pop("dynamic_batching", None)  # whose sizes the host has filled in meanwhile
    elif ours.fuse:
        from ge_backend.serving.fused import fused_document  # noqa: PLC0415 - only these need it

        given.update(fused_document(given, ours))
    elif not (ours.inputs and ours.outputs):
        given.update(complete_document(given, ours))
    return config
