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
from ge_backend.host.logs import install_handler
from ge_backend.host.version_folder import version_folder
from ge_backend.kinds import kind_of

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
    completed = kind_of(ours).complete(given, ours)
    for field in given.keys() - completed.keys():
        given.pop(field)
    given.update(completed)
    return config
