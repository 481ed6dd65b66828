"""The page loads nothing and may run nothing but its own; test_openai.py opens it in a browser."""

import base64
import hashlib
import re

from ge_openai.page import headers_of, read_page


def policy():
    header = headers_of(read_page())["content-security-policy"]
    return dict(part.split(" ", 1) for part in header.split("; "))


def test_nothing_comes_from_elsewhere():
    """No address of another server stands in it."""
    assert not re.findall(r"https?:|[\"'(]//|@import|url\(", read_page())


def test_its_own_script_and_style_are_allowed_by_their_hashes():
    """Not by `unsafe-inline`, so what is written into the page is text."""
    page = read_page()
    for name, tag in (("script-src", "script"), ("style-src", "style")):
        (body,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert policy()[name] == f"'sha256-{digest}'"
    assert not re.findall(r"<[^>]*\s(on\w+|style)=", page)
    assert "innerHTML" not in page


def test_everything_else_is_forbidden():
    """It talks to its own API, is framed by nobody, and sends no form."""
    said = policy()
    for name in ("default-src", "base-uri", "form-action", "frame-ancestors"):
        assert said[name] == "'none'"
    assert (said["connect-src"], said["img-src"]) == ("'self'", "data:")
    assert headers_of("")["x-content-type-options"] == "nosniff"
