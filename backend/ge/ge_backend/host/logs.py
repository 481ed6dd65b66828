"""The only log handler: what the package logs goes to the host's own log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import triton_python_backend_utils as pb_utils

__all__ = ["HostHandler", "install_handler"]

# Whose lines go there: this package's, and text generation's.
ROOTS = ("ge_backend", "ge_text")


class HostHandler(logging.Handler):
    """Writes records to `pb_utils.Logger`; 50-125 microseconds a line, so not per request."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self._writers: Mapping[int, Callable[[str], None]] = {
            logging.DEBUG: pb_utils.Logger.log_verbose,
            logging.INFO: pb_utils.Logger.log_info,
            logging.WARNING: pb_utils.Logger.log_warn,
            logging.ERROR: pb_utils.Logger.log_error,
        }

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record at the host's nearest level."""
        level = max(
            (known for known in self._writers if known <= record.levelno), default=logging.DEBUG
        )
        self._writers[level](f"ge {self._model}: {self.format(record)}")


def install_handler(model: str) -> None:
    """Send the packages' log lines to the host's log, from now on."""
    handler = HostHandler(model)
    for root in ROOTS:
        logger = logging.getLogger(root)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
