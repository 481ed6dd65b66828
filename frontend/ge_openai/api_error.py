"""What an HTTP client gets when something fails: OpenAI's form, with the right status."""

from __future__ import annotations

from typing import Any

__all__ = ["CONTEXT_LENGTH_EXCEEDED", "TOO_LONG", "ApiError", "error_of_grpc"]

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"

# gRPC's name of a status → HTTP's number. Source: google/rpc/code.proto.
_STATUS = {
    "INVALID_ARGUMENT": 400,
    "CANCELLED": 499,
    "NOT_FOUND": 404,
    "UNAVAILABLE": 503,
    "UNIMPLEMENTED": 501,
    "DEADLINE_EXCEEDED": 504,
    "RESOURCE_EXHAUSTED": 429,
}
_SERVER_ERROR = 500
# An adapter is asked for as a model; in the words of `AdapterFolder.find`, whose status is another.
_NO_SUCH_ADAPTER = "; the adapters of this model are "
# In our words and in vLLM's, behind "this model's".
TOO_LONG = "maximum context length is"


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
        message: what failed, what was expected, what came, what to change.
        param: the field of the request that is wrong.
        code: OpenAI's word for it, such as `model_not_found`.
    """

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the JSON object that carries it; what is no Unicode in it is written as escapes.

        Source: openai-python 3.54.0, `_exceptions.py`: message, type, param and code are read.
        """
        kind = "server_error" if self.status >= _SERVER_ERROR else "invalid_request_error"
        param = None if self.param is None else _escaped(self.param)
        error = {"message": _escaped(str(self)), "type": kind, "param": param, "code": self.code}
        return {"error": error}


def _escaped(text: str) -> str:
    """Return a text as UTF-8 can hold it: JSON can write half of a pair of surrogates."""
    return text.encode(errors="backslashreplace").decode()


def error_of_grpc(status: str, message: str) -> ApiError:
    """Return the error of an HTTP client where the server has failed a call with this status."""
    if status == "INVALID_ARGUMENT":
        return _refusal(message)
    code = "model_not_found" if status == "NOT_FOUND" else None
    return ApiError(message, status=_STATUS.get(status, _SERVER_ERROR), code=code)


def _refusal(message: str) -> ApiError:
    """Return what a client learns of a request that the engine refuses."""
    if _NO_SUCH_ADAPTER in message:
        return ApiError(message, status=404, param="model", code="model_not_found")
    return ApiError(message, code=CONTEXT_LENGTH_EXCEEDED if TOO_LONG in message else None)
