"""The paths of the API, and the one that a wrong path is meant for."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ge_openai.api_error import ApiError

__all__ = ["CHAT", "COMPLETIONS", "EMBEDDINGS", "MODELS", "RERANK", "SCORE", "no_such_path"]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
MODELS = "/v1/models"
# As many as there are in the field: Jina's and Cohere's first, Cohere's second, and vLLM's.
RERANK = ("/v1/rerank", "/v2/rerank", "/rerank")
SCORE = ("/v1/score", "/score")
# How a path ends, behind whatever else → what is served of that kind; the first one counts.
_MEANT = {
    "/responses": CHAT,
    "/chat/completions": CHAT,
    "/completions": COMPLETIONS,
    "/embeddings": EMBEDDINGS,
    "/models": MODELS,
    "/rerank": RERANK[0],
    "/score": SCORE[0],
}


def no_such_path(request: Request, error: Any) -> Response:
    """Answer a path that is none, or by another method than it takes."""
    path = request.url.path
    message = f"{request.method} {path}: {error.detail}"
    if error.status_code == HTTPStatus.NOT_FOUND and (meant := _meant(path)):
        message += f"; this server has {meant}"
    body = ApiError(message, status=error.status_code).body()
    return JSONResponse(body, error.status_code, error.headers)


def _meant(path: str) -> str:
    """Return the path that a client most likely wants; "" if none is like it."""
    if "/responses/" in path:  # one that is to be read or cancelled
        return CHAT
    return next((meant for end, meant in _MEANT.items() if path.rstrip("/").endswith(end)), "")
