"""The command line: `ge-backend …`, one file per command."""

import importlib.metadata

__all__ = ["version"]


def version() -> str:
    """Return the version of this package; a copied folder has none."""
    try:
        return importlib.metadata.version("triton-ge-backend")
    except importlib.metadata.PackageNotFoundError:
        return "(copied, not installed)"
