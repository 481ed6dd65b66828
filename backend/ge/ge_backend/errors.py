"""Every error this package raises, and the Triton status each one becomes.

    GeError                    INTERNAL        base; raise a leaf
      ConfigError              INVALID_ARG     config.pbtxt parameters, GE_* variables, bucket files
      InvalidRequest           INVALID_ARG     a request that this model cannot take
      ShapeTooLarge            INVALID_ARG     no bucket covers a request and the policy says error
      Unsupported              UNSUPPORTED     asked for something this device or engine cannot do
      ModelError               INVALID_ARG     a model file that cannot be loaded
      GraphFailed              INTERNAL        the engine refused or broke one run
      OutOfMemory              UNAVAILABLE     the device's memory is used up; retry later may help
      DeviceUnavailable        UNAVAILABLE     no such device here, or its library is missing
      DeviceFault              UNAVAILABLE     the device itself broke or hangs; its process ends
      ExecutorLost             UNAVAILABLE     the executor died or was restarted meanwhile
      StateLost                UNAVAILABLE     a step failed after its sequence's state had moved on
      TensorsLost              UNAVAILABLE     what a step had left on the device is gone
      DeadlineExceeded         UNAVAILABLE     the request's own time limit passed before it ran
      QueueFull                UNAVAILABLE     as many requests wait as may; retry later may help
      Cancelled                CANCELLED       the client gave up
      ProtocolError            INTERNAL        a message that the peer's version does not understand
      ServerError              INTERNAL        tritonserver was not found, or did not start

A message says what failed, what was expected, what came, and what to change.
"""

from __future__ import annotations

import traceback
from enum import Enum
from typing import TypeVar

__all__ = [
    "CONTEXT_LENGTH",
    "Cancelled",
    "ConfigError",
    "DeadlineExceeded",
    "DeviceFault",
    "DeviceUnavailable",
    "ExecutorLost",
    "GeError",
    "GraphFailed",
    "InvalidRequest",
    "ModelError",
    "OutOfMemory",
    "ProtocolError",
    "QueueFull",
    "ServerError",
    "ShapeTooLarge",
    "StateLost",
    "Status",
    "TensorsLost",
    "Unsupported",
    "drop_frames",
    "error_from_name",
    "for_host",
    "unforeseen",
]

# How what is too long for a model is refused: by these words LiteLLM tells that a larger model may
# do, and so do those who build on it. Source: litellm 1.110.2, `exception_mapping_utils.py`.
CONTEXT_LENGTH = "this model's maximum context length is"


class Status(Enum):
    """The Triton status a client sees; the value is the name in `pb_utils.TritonError`.

    Source: facts checked on tritonserver 2.51.0: INVALID_ARG is gRPC INVALID_ARGUMENT and HTTP 400,
    UNAVAILABLE is 503, UNSUPPORTED is UNIMPLEMENTED and 501, INTERNAL is 500, CANCELLED is 400.
    """

    INTERNAL = "INTERNAL"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    CANCELLED = "CANCELLED"


class GeError(Exception):
    """The base of all errors of this package."""

    status = Status.INTERNAL


class ConfigError(GeError):
    """A setting is unknown, malformed, or contradicts another one."""

    status = Status.INVALID_ARG


class InvalidRequest(GeError):
    """A request that this model cannot take; its neighbours in the batch go on."""

    status = Status.INVALID_ARG


class ShapeTooLarge(GeError):
    """No bucket covers a request and the model's overflow policy is `error`."""

    status = Status.INVALID_ARG


class Unsupported(GeError):
    """This device or engine cannot do what was asked."""

    status = Status.UNSUPPORTED


class ModelError(GeError):
    """A model file is missing, corrupt, or not what the configuration says."""

    status = Status.INVALID_ARG


class GraphFailed(GeError):
    """The engine refused or broke one run; the device itself is well."""


class OutOfMemory(GeError):
    """The device's memory is used up."""

    status = Status.UNAVAILABLE


class DeviceUnavailable(GeError):
    """No such device on this machine, or the library that drives it is missing."""

    status = Status.UNAVAILABLE


class DeviceFault(GeError):
    """The device broke or hangs. Nothing that its process holds there can be relied upon."""

    status = Status.UNAVAILABLE


class ExecutorLost(GeError):
    """The executor died while it held the work."""

    status = Status.UNAVAILABLE


class StateLost(GeError):
    """A step failed when the state of its sequence had moved on, so that it cannot be repeated."""

    status = Status.UNAVAILABLE

    @classmethod
    def after(cls, error: GeError) -> StateLost:
        """Return what a client is told whose step failed for this reason."""
        return cls(
            f"{error} (this came up when the step had changed the state of its sequence, which is "
            "given up; begin the sequence again with a request that has sequence_start set)"
        )


class TensorsLost(GeError):
    """What one step of an ensemble had left on the device for another is gone with its executor."""

    status = Status.UNAVAILABLE


class DeadlineExceeded(GeError):
    """The request's own time limit passed before it ran."""

    status = Status.UNAVAILABLE

    @classmethod
    def within(cls, timeout_s: float) -> DeadlineExceeded:
        """Return the error of a text that was not done in the seconds that its request had."""
        return cls(f"the request was not done within its {timeout_s:g} s; allow it more")


class QueueFull(GeError):
    """As many requests wait for this model as may."""

    status = Status.UNAVAILABLE


class Cancelled(GeError):
    """The client gave up on the request."""

    status = Status.CANCELLED

    @classmethod
    def by_client(cls) -> Cancelled:
        """Return the error of a request that has begun, or may have."""
        return cls("the client has given up on the request")


class ProtocolError(GeError):
    """A message that this version does not understand."""

    @classmethod
    def not_held(cls, graph: int) -> ProtocolError:
        """Return the error of a message about a graph that its connection has not loaded."""
        return cls(f"graph {graph} is not held by this connection")


class ServerError(GeError):
    """Tritonserver was not found, did not start, or died."""


_BY_NAME: dict[str, type[GeError]] = {leaf.__name__: leaf for leaf in GeError.__subclasses__()}


def error_from_name(name: str, message: str) -> GeError:
    """Return the error of that class name, so that an error crosses a process as two strings.

    An unknown name (a newer executor) becomes a plain `GeError`.
    """
    return _BY_NAME.get(name, GeError)(message)


_Leaf = TypeVar("_Leaf", bound=GeError)


def unforeseen(error: Exception, kind: type[_Leaf]) -> _Leaf:
    """Return what is said about an unforeseen error, whose traceback is in the log."""
    return kind(f"{type(error).__name__}: {error} (see the server's log)")


_Error = TypeVar("_Error", bound=BaseException)


def for_host(error: GeError) -> GeError:
    """Return the error of a load as the host is to report it, which prints all of its frames.

    They are of use where we are at fault; else the message says what to change.
    """
    return error if error.status is Status.INTERNAL else error.with_traceback(None)


def drop_frames(error: _Error) -> _Error:
    """Return an error whose frames, and those of what it was made of, hold nothing any more.

    They had the tensors of what failed, perhaps most of a device's memory, and hold on to them as
    long as the error is kept; frames that keep it themselves do so until circles are
    collected.
    """
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__
    return error
