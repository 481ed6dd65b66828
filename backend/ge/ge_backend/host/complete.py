"""Filling in what config.pbtxt leaves out: inputs, outputs, batching, from the model file.

Triton calls this in a short-lived process before the instances start. It asks the executor, which
keeps the graph for the instance that comes next, so nothing is loaded twice.
Source: python_backend r24.10 README, "auto_complete_config"; that `as_dict()` is live, and which
edits core takes back, was tested on tritonserver 2.51.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

from ge_backend.errors import GeError, for_host
from ge_backend.host.logs import install_handler
from ge_backend.host.version_folder import version_folder
from ge_backend.kinds import kind_of
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.config.model_folder import config_file
from ge_backend.model.config.written import sets_max_batch_size
from ge_backend.serving.host_server import HostServer

__all__ = ["complete_config"]

log = logging.getLogger(__name__)


def complete_config(config: Any) -> Any:
    """Return the host's configuration object with inputs, outputs and batching filled in.

    A configuration that names its inputs and outputs is left as it is, and no executor is asked.

    Raises:
        GeError: it cannot be served as configured; the host reports it at load.
    """
    try:
        _complete(config.as_dict())
    except GeError as error:
        raise for_host(error) from None
    return config


def _complete(given: dict[str, Any]) -> None:
    install_handler(str(given["name"]))
    directory = version_folder(given)
    ours = ModelConfig.read(
        given, directory=directory, version=directory.name, environment=os.environ
    )
    kind, document = kind_of(ours), dict(given)
    open_ = kind.graph and not (ours.max_batch_size or (ours.inputs and ours.outputs))
    if open_ and not _sets_no_batches(directory):
        document.pop("max_batch_size", None)
    completed = kind.complete(document, ours)
    for field in given.keys() - completed.keys():
        given.pop(field)
    given.update(completed)


def _sets_no_batches(directory: Path) -> bool:
    """Whether the host has a `max_batch_size` of 0 because it was told so, and not for want of any.

    Where a load request's configuration came, the host does not tell the two apart; without batches
    no request is refused.
    """
    server = HostServer.above()
    file = config_file(directory.parent, server.config_name)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if sets_max_batch_size(file.read_text(encoding="utf-8")):
            return True
    if handed := server.was_handed(directory):
        log.info(
            "max_batch_size is 0: the load request's configuration says so, or does not say it; "
            "where requests may share batches, give it there"
        )
    return handed
