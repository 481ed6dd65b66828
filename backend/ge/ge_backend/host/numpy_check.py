"""Whether the host's Python API and the numpy beside it understand each other."""

from __future__ import annotations

import numpy as np

from ge_backend.errors import ConfigError

__all__ = ["check_numpy"]

FIRST_MISREAD = 2  # major version


def check_numpy(*, allow_2: bool, version: str = np.__version__) -> None:
    """See that numpy is one that the host's Python stub can read.

    The stub of r24.10 was built against numpy 1: with numpy 2 it reads `[1, 2, 3]` as `[1, 1, 1]`,
    returns empty outputs, and crashes on BYTES (tested with numpy 2.5). Nothing else would notice,
    and a stub is not told its server's release. So numpy 2 has to be allowed: by `ge-backend
    serve`, which knows it, or by a person. Stubs read it from r24.11 on (python_backend 09c3537).

    Raises:
        ConfigError: it is numpy 2 or newer, and `allow_2` is not set.
    """
    if int(version.partition(".")[0]) >= FIRST_MISREAD and not allow_2:
        raise ConfigError(
            f"numpy {version} is installed where the server's Python stub runs, expected numpy 1: "
            "stubs built against numpy 1 misread tensors silently; install 'numpy<2' there, or set "
            "GE_NUMPY_2=allow if this server is Triton 2.52 (24.11) or newer"
        )
