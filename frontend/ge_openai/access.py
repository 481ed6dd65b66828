"""Who may ask: API keys."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from http import HTTPStatus

from ge_openai.api_error import ApiError

__all__ = ["check_key"]


def check_key(header: str, keys: Sequence[str]) -> None:
    """Raise unless a request brings one of the keys.

    How long it takes tells nothing about a key but its length: every one is compared whole.

    Args:
        header: `Authorization`, its bytes read as Latin-1, as ASGI has it; "" if it sent none.
        keys: none of them: everybody may ask.

    Raises:
        ApiError: status 401.
    """
    scheme, _, given = header.partition(" ")
    sent = given.strip()
    blocks = sent.encode("latin-1"), sent.encode()  # a client's UTF-8, as it came; and its Latin-1
    equal = [hmac.compare_digest(block, key.encode()) for key in keys for block in blocks]
    if keys and not (scheme.lower() == "bearer" and any(equal)):
        raise ApiError(
            "a valid API key is needed: send the header 'Authorization: Bearer KEY'",
            status=HTTPStatus.UNAUTHORIZED,
            code="invalid_api_key",
        )
