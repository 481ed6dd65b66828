"""The API in front of a server that is made up."""

import asyncio
import json
from dataclasses import replace
from unittest import mock

import numpy as np
from starlette.requests import Request

from ge_openai import app
from ge_openai.api_error import ApiError
from ge_openai.app import Endpoints
from ge_openai.models import Ability, ServedModel
from ge_openai.options import FrontOptions

MODEL = ServedModel(name="m", ability=Ability.EMBEDDING, rows=2, input="i", output="o", size=1)


class Server:
    """Embeds texts of numbers, a batch a while; where it `refuses` one, the others take long.

    Of a pair the score is the second text.
    """

    def __init__(self, refuses=""):
        self.refuses = refuses.encode()
        self.begun = self.ended = self.most = 0

    async def model(self, name, ability):
        return replace(MODEL, name=name, ability=ability)

    async def vectors(self, model, columns):
        texts = columns[-1]
        assert all(len(column) == len(texts) <= model.rows for column in columns)
        self.begun += 1
        self.most = max(self.most, self.begun - self.ended)
        try:
            await asyncio.sleep(60 if self.refuses and self.refuses not in texts else 0.001)
            if self.refuses in texts:
                raise ApiError("the queue is full", status=503)
            return np.array(list(map(float, texts)), np.float32).reshape(-1, 1)
        finally:
            self.ended += 1

    async def close(self):
        pass


def post(server, body, endpoint="embeddings"):
    """Return status and JSON of what an endpoint before a server answers to a body."""
    return asyncio.run(_post(server, {"model": "m", **body}, endpoint))


async def _post(server, body, endpoint):
    async def receive():
        if not received:
            received.append(True)
            return {"type": "http.request", "body": json.dumps(body).encode()}
        return await asyncio.Event().wait()  # the client stays

    received = []
    scope = {"type": "http", "headers": [(b"content-type", b"application/json")]}
    with mock.patch.object(app, "TritonConnection", return_value=server):
        endpoints = Endpoints(FrontOptions(url=""))
        async with endpoints.lifespan(None):
            asked = getattr(endpoints.of_vectors, endpoint, None) or getattr(endpoints, endpoint)
            answer = await endpoints.guarded(asked)(Request(scope, receive))
    return answer.status_code, json.loads(answer.body)
