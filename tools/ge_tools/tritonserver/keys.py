"""What opens the groups of a server's paths that are restricted: to each a header with its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ge_backend.errors import ConfigError
from ge_backend.executor.process.host_processes import values_of

__all__ = [
    "CONTROL",
    "GRPC_RESTRICTED",
    "HTTP_RESTRICTED",
    "Keys",
    "opening",
    "restricted_groups",
    "restrictions",
]

# The header and the key of each group that is restricted.
Keys = Mapping[str, tuple[str, str]]

HTTP_RESTRICTED = "--http-restricted-api"
GRPC_RESTRICTED = "--grpc-restricted-protocol"
# The group of what lists, loads and unloads models.
CONTROL = "model-repository"
# Source: server r24.10 src/restricted_features.h.
GROUPS = (
    *("health", "metadata", "inference", "shared-memory", "model-config"),
    *(CONTROL, "statistics", "trace", "logging"),
)
# Of the paths that are asked for here, the most special first; seen on 2.51.
PATHS = (
    ("/v2/health/", "health"),
    ("/v2/models/stats", "statistics"),
    ("/v2/models/", "model-config"),
    ("/v2/repository/", CONTROL),
    ("/v2", "metadata"),
)


def opening(path: str, keys: Keys) -> dict[str, str]:
    """Return the header that opens a path, with its key; nothing where none is asked for."""
    group = next((name for begin, name in PATHS if path.startswith(begin)), "")
    return dict([keys[group]]) if group in keys else {}


def restrictions(arguments: Sequence[str], flag: str) -> dict[str, tuple[str, str]]:
    """Return the header and the key of each group that a server's arguments restrict.

    Source: server r24.10 src/command_line_parser.cc, ParseRestrictedFeatureOption.
    """
    found: dict[str, tuple[str, str]] = {}
    for text in values_of(arguments, flag, "--http-re"):
        found |= _read(text)
    return found


def restricted_groups(text: str) -> dict[str, tuple[str, str]]:
    """Return what one value of the flag says, `health,metadata:HEADER=KEY`.

    Raises:
        ConfigError: it is none.
    """
    found = _read(text)
    if not all(header and key and name in GROUPS for name, (header, key) in found.items()):
        raise ConfigError(
            f"{HTTP_RESTRICTED} {text!r}: expected GROUPS:HEADER=KEY, with groups of "
            f"{', '.join(GROUPS)}"
        )
    return found


def _read(text: str) -> dict[str, tuple[str, str]]:
    names, _, pair = text.partition(":")
    header, _, key = pair.partition("=")
    return dict.fromkeys(names.split(","), (header, key))
