"""The fake host module, under the name that the real one has in a stub."""

from fixtures.host import newer_pb_utils, pb_utils, restored, shared

__all__ = ["newer_pb_utils", "pb_utils", "restored", "shared"]
