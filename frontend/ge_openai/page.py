"""The page at `/`: one file, which may load nothing and talk to its own API alone."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["headers_of", "read_page"]

FILE = Path(__file__).with_name("page.html")


def read_page() -> str:
    """Return the page."""
    return FILE.read_text(encoding="utf-8")


def headers_of(page: str) -> Mapping[str, str]:
    """Return the headers that a browser holds the page to.

    Its own script and style are allowed by their hashes and nothing else, so that whatever a model
    or a client writes into the page cannot run. Source: W3C, Content Security Policy Level 3.
    """
    policy = {
        "default-src": "'none'",
        "script-src": _hash(page, "script"),
        "style-src": _hash(page, "style"),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }


def _hash(page: str, tag: str) -> str:
    """Return the sources of one kind: the hash of each element of it that the page has."""
    bodies = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digests = (hashlib.sha256(body.encode()).digest() for body in bodies)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
