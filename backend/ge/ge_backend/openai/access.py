"""Who may ask: API keys."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from http import HTTPStatus

from ge_backend.openai.api_error import ApiError

__all__ = ["check_key"]


def check_key(header: str, keys: Sequence[str]) -> None:
    """Raise unless a request brings one of the keys.

    How long it takes tells nothing about a key but its length: every one is compared whole.

    Args:
        header: `Authorization`, as the client sent it; "" if it sent none.
        keys: none of them: everybody may ask.

    Raises:
        ApiError: status 401.
    """
    scheme, _, given = header.partition(" ")
    block = given.strip().encode()
    equal = [hmac.compare_digest(block, key.encode()) for key in keys]
    if keys and not (scheme.lower() == "bearer" and any(equal)):
        raise ApiError(
            "a valid API key is needed: send the header 'Authorization: Bearer KEY'",
            status=HTTPStatus.UNAUTHORIZED,
            code="invalid_api_key",
        )
