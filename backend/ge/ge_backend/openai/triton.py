"""The server behind the API, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from http import HTTPStatus
from typing import Any

import grpc  # type: ignore[import-untyped] # ships no types
import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.grpc import aio
from tritonclient.utils import (
    InferenceServerException,
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    triton_to_np_dtype,
)

from ge_backend.openai.api_error import ApiError, error_of_grpc
from ge_backend.openai.models import Ability, ServedModel, read_model
from ge_backend.openai.text_call import Piece, TextCall, read_pieces, text_inputs, text_outputs
from ge_backend.tensors import Array

__all__ = ["TritonConnection"]

# Errors of a stream come with their status. Source: triton-inference-server/server r24.10,
# `docs/protocol/extension_generate.md` and `src/grpc/stream_infer_handler.cc`.
_STRICT = {"triton_grpc_error": "true"}
# The server is the operator's own, most often on this machine: no proxy of the environment is asked
# for it, and after an outage gRPC tries each second, where by itself it waits up to two minutes.
# What is given here stands in place of the client's own options, so its limits on messages, none,
# are among them.
_CHANNEL = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
# Then a server stands still; one that is busy answers sooner.
READY_TIMEOUT_S = 5.0
# A model's name is a folder's, here or in a bucket of S3, whose names end there. The server's error
# repeats the name that it is asked for, and gRPC takes no error of more than 16 KiB.
MOST_NAME_BYTES = 1024
# Characters of such a name that the answer repeats.
MOST_TOLD = 100


class TritonConnection:
    """One connection for all requests; for one event loop.

    Args:
        url: host:port of gRPC.
    """

    def __init__(self, url: str) -> None:
        self._client = aio.InferenceServerClient(url, channel_args=_CHANNEL)
        self._known: dict[str, ServedModel] = {}

    async def close(self) -> None:
        """End the connection."""
        await self._client.close()

    async def ready(self) -> bool:
        """Return whether the server answers, and all of its models do, within a while."""
        try:
            return bool(await self._client.is_server_ready(client_timeout=READY_TIMEOUT_S))
        except InferenceServerException:
            return False

    async def models(self) -> list[ServedModel]:
        """Return the models that are ready and can be served.

        Raises:
            ApiError: the server does not answer.
        """
        index = await self._asked(self._client.get_model_repository_index(as_json=True))
        ready = [each["name"] for each in index.get("models", []) if each.get("state") == "READY"]
        self._known = {}
        found = await asyncio.gather(*map(self._read, dict.fromkeys(ready)))
        return [model for model in found if model is not None]

    async def model(self, name: str, ability: Ability) -> ServedModel:
        """Return a model for what it is to do.

        Raises:
            ApiError: there is none of that name, it is not ready, or it is for something else.
        """
        if not _can_be_a_name(name):
            raise _unknown(f"{name[:MOST_TOLD]}…" if len(name) > MOST_TOLD else name)
        model = self._known.get(name) or await self._read(name)
        if model is None:
            raise await self._explained(name, _unknown(name))
        if model.ability is not ability:
            raise _unknown(name)
        return model

    async def write(self, call: TextCall) -> AsyncGenerator[list[Piece], None]:
        """Yield what a language model writes, a piece per sample; closing it cancels the request.

        Raises:
            ApiError: the server has refused or failed it.
        """
        request = {
            "model_name": call.model,
            "inputs": _tensors(text_inputs(call)),
            "outputs": [grpcclient.InferRequestedOutput(name) for name in text_outputs(call)],
        }
        stream = self._client.stream_infer(_once(request), headers=_STRICT)
        try:
            async for result, error in stream:
                if error is not None:
                    raise await self._explained(call.model, ApiError(str(error), status=500))
                pieces = read_pieces(_arrays(result.get_response()))
                if pieces:
                    yield pieces
        except grpc.RpcError as error:
            failure = error_of_grpc(error.code().name, error.details())
            raise await self._explained(call.model, failure) from error
        finally:
            stream.cancel()

    async def embed(self, model: ServedModel, texts: list[bytes]) -> Array:
        """Return float32 [texts, size]; at most `model.rows` texts.

        Raises:
            ApiError: the server has refused or failed it.
        """
        column = np.array(texts, np.object_).reshape(-1, 1)
        wanted = [grpcclient.InferRequestedOutput(model.output)]
        call = self._client.infer(model.name, _tensors({model.input: column}), outputs=wanted)
        try:
            result = await self._asked(call)
        except ApiError as error:
            raise await self._explained(model.name, error) from error
        vectors: Array = result.as_numpy(model.output).reshape(len(texts), -1)
        return vectors

    async def _read(self, name: str) -> ServedModel | None:
        """Return what a model is for, and remember it."""
        try:
            answer = await self._asked(self._client.get_model_config(name, as_json=True))
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        model = read_model(answer["config"])
        if model is not None:
            self._known[name] = model
        return model

    async def _explained(self, model: str, error: ApiError) -> ApiError:
        """Return what a failure means: that the model is not ready now, or no longer there.

        Triton fails a stream of such a model without a status, and other requests as not found,
        also while it ends or loads a model anew (seen on 2.51).
        """
        if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.INTERNAL_SERVER_ERROR}:
            return error
        self._known.pop(model, None)
        index = await self._asked(self._client.get_model_repository_index(as_json=True))
        states = [each.get("state") for each in index.get("models", []) if each["name"] == model]
        if "READY" in states:
            return error
        if not states or await self.ready():
            return _unknown(model)
        return ApiError(
            f"the model {model!r} is not ready; ask again when /health says that the server is",
            status=HTTPStatus.SERVICE_UNAVAILABLE,
            param="model",
        )

    async def _asked(self, call: Any) -> Any:
        try:
            return await call
        except InferenceServerException as error:
            status = str(error.status() or "").removeprefix("StatusCode.")
            raise error_of_grpc(status, error.message()) from error


def _can_be_a_name(name: str) -> bool:
    """Whether the server can be asked for a model of this name."""
    try:
        return len(name.encode()) <= MOST_NAME_BYTES
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can write
        return False


def _unknown(model: str) -> ApiError:
    return ApiError(
        f"the model {model!r} does not exist here, or is not for this; GET /v1/models lists those "
        "that are",
        status=HTTPStatus.NOT_FOUND,
        param="model",
        code="model_not_found",
    )


def _arrays(response: Any) -> dict[str, Array]:
    """Return a response's tensors, all of one dimension; `InferResult` would seek each anew."""
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {tensor.name: _array(tensor.datatype, block) for tensor, block in pairs}


def _array(kind: str, block: bytes) -> Array:
    if kind == "BYTES":
        texts: Array = deserialize_bytes_tensor(block)
        return texts
    return np.frombuffer(block, triton_to_np_dtype(kind))


async def _once(request: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield dict(request)


def _tensors(arrays: Mapping[str, Array]) -> Iterable[Any]:
    tensors = []
    for name, array in arrays.items():
        tensors.append(grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    return tensors
