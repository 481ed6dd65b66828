"""The fake host module, under the name that the real one has in a stub."""

from fixtures.host import pb_utils, restored, shared

__all__ = ["pb_utils", "restored", "shared"]
