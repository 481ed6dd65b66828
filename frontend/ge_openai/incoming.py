"""What comes in with requests: bodies and texts, within the API's limits."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.requests import Request

from ge_openai.api_error import ApiError
from ge_openai.options import FrontOptions

__all__ = ["Incoming"]


class Incoming:
    """Takes what comes in."""

    def __init__(self, options: FrontOptions) -> None:
        self._options = options

    async def body(self, request: Request) -> bytes:
        """Return a body that is JSON by its header, and not too long.

        A page of another site cannot send that header without being asked for, so it cannot make a
        browser ask in its stead.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(
                f"the body has to be JSON: send 'Content-Type: application/json', not {kind!r}",
                status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            )
        limit = self._options.max_body_bytes
        block = bytearray()
        async for part in request.stream():
            block += part
            if len(block) > limit:
                message = f"the body has more than {limit} bytes"
                raise ApiError(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return bytes(block)

    def check_texts(self, given: Sequence[str | tuple[int, ...]], param: str) -> None:
        """See that texts are UTF-8 and not too long."""
        limit = self._options.max_prompt_bytes
        for text in given:
            try:
                nbytes = len(text.encode()) if isinstance(text, str) else 0
            except UnicodeEncodeError as error:
                raise ApiError(f"{param} is not Unicode: {error}", param=param) from error
            if nbytes > limit:
                raise ApiError(
                    f"{param} has {nbytes} bytes, at most {limit}",
                    param=param,
                    code="string_above_max_length",
                )
