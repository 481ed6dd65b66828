"""The server behind the API, over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
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

from ge_openai.api_error import ApiError, error_of_grpc
from ge_openai.models import (
    DESCRIPTION,
    HEARTBEAT,
    Ability,
    Array,
    Describer,
    ServedModel,
    describer,
    read_model,
    reader,
)
from ge_openai.text_call import (
    Piece,
    TextCall,
    read_pieces,
    text_inputs,
    text_outputs,
)

__all__ = ["OtherDescriptionError", "TritonConnection"]

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
# Looks for heartbeats in vain, so long apart, that a model's process is dead behind.
LOOKS = 2
# Of what the server answers in the stead of a process that has died. Source:
# triton-inference-server/python_backend r24.10, `src/python_be.cc`.
_UNHEALTHY = "is not healthy"
# A model's name is a folder's, here or in a bucket of S3, whose names end there. The server's error
# repeats the name that it is asked for, and gRPC takes no error of more than 16 KiB.
MAX_NAME_BYTES = 1024
# Characters of such a name that the answer repeats.
MAX_REPEATED_NAME = 100
# Of failures that may be the doing of a model that was loaded anew.
_DOUBTFUL = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.INTERNAL_SERVER_ERROR,
}
# gRPC's word for an answer that has not come within the time for it.
_TOO_LATE = "DEADLINE_EXCEEDED"


class OtherDescriptionError(ApiError):
    """A model is another than the one that a request was made for: it was loaded anew.

    Attributes:
        model: its name.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"the model {model!r} was loaded anew meanwhile; ask again",
            status=HTTPStatus.SERVICE_UNAVAILABLE,
            param="model",
        )


class TritonConnection:
    """One connection for all requests; for one event loop.

    Args:
        url: host:port of gRPC.
    """

    def __init__(self, url: str) -> None:
        self._client = aio.InferenceServerClient(url, channel_args=_CHANNEL)
        self._known: dict[str, ServedModel] = {}
        self._heard = 0.0  # from the server

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
        # Of each version that is served; the repository may be closed to others, or away.
        call = self._client.get_inference_statistics(as_json=True, client_timeout=READY_TIMEOUT_S)
        served = [each["name"] for each in (await self._asked(call)).get("model_stats", [])]
        self._known = {}
        found = await asyncio.gather(*map(self._read, dict.fromkeys(served)))
        return [model for model in found if model is not None]

    async def model(self, name: str, ability: Ability) -> ServedModel:
        """Return a model for what it is to do.

        Raises:
            ApiError: there is none of that name, it is not ready, or it is for something else.
        """
        if not _can_be_a_name(name):
            cut = len(name) > MAX_REPEATED_NAME
            raise _unknown(f"{name[:MAX_REPEATED_NAME]}…" if cut else name)
        model = self._known.get(name)
        if model is None or model.ability is not ability or _takes_anything(model):
            model = await self._read(name)  # it may have been loaded anew
        if model is None:
            unknown = _unknown(name)
            why = await self._explained(name, unknown, None)
            # One that the server has by the second question was not there at the first.
            loaded = why is unknown and await self._read(name) is not None
            raise _not_ready(name) if loaded else why
        if model.ability is not ability:
            raise _unknown(name)
        return model

    async def write(self, call: TextCall) -> AsyncGenerator[list[Piece], None]:
        """Yield what a language model writes, a piece per sample; closing it cancels the request.

        Raises:
            ApiError: the server has refused or failed it.
            OtherDescriptionError: the model is not the one that the prompt was made for.
        """
        responses = self._responses(call.model, text_inputs(call), text_outputs(call))
        async with contextlib.aclosing(responses):
            other = False
            async for outputs in responses:
                other = other or DESCRIPTION in outputs
                pieces = read_pieces(outputs)
                if pieces:
                    yield pieces
        if other:
            raise OtherDescriptionError(call.model)

    async def description(self, model: str, wanted: str = "") -> str:
        """Return what a language model of this project says of itself, JSON.

        Args:
            model: its name.
            wanted: what of it, such as `adapters`; everything if empty.

        Raises:
            ApiError: the server has refused or failed it, or the model is another by now.
        """
        given = {
            "text_input": np.array([b""], np.object_),
            DESCRIPTION: np.array([wanted.encode()], np.object_),
        }
        responses = self._responses(model, given, (DESCRIPTION,))
        described = ""
        async with contextlib.aclosing(responses):
            async for outputs in responses:  # to the end, see `_responses`
                if DESCRIPTION in outputs:
                    described = outputs[DESCRIPTION][0].decode()
        if not described:
            raise _not_ready(model)
        return described

    async def _responses(
        self, model: str, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> AsyncGenerator[dict[str, Array], None]:
        """Yield the outputs of a model's responses; closing it cancels the request.

        What is wanted whole is read to its end: a request that is cancelled as its last response
        goes out may hold its model in the server, which is then never unloaded (seen on 2.51).

        Raises:
            ApiError: the server has refused or failed it.
            OtherDescriptionError: the model is for something else by now, or of another backend.
        """
        known = self._known.get(model)
        beats = known is not None and known.beats
        request = {
            "model_name": model,
            "inputs": _tensors({**inputs, HEARTBEAT: np.array([True])} if beats else inputs),
            "outputs": [grpcclient.InferRequestedOutput(name) for name in outputs],
        }
        stream = self._client.stream_infer(_once(request), headers=_STRICT)
        try:
            with self._watched(stream, model if beats else "") as heard:
                async for result, error in stream:
                    heard()
                    if error is not None:
                        failed = ApiError(str(error), status=500)
                        raise await self._explained(model, failed, known)
                    yield _arrays(result.get_response())
        except grpc.RpcError as error:
            failure = error_of_grpc(error.code().name, error.details())
            raise await self._explained(model, failure, known) from error

    async def vectors(self, model: ServedModel, columns: Sequence[Sequence[bytes]]) -> Array:
        """Return float32 [rows, size] of texts, or of the pairs in two columns of a ranker's.

        There are at most `model.rows` rows.

        Raises:
            ApiError: the server has refused or failed it, or the model has another form by now.
        """
        names = (model.input, model.pair)[: len(columns)]
        given = {
            name: np.array(column, np.object_).reshape(-1, 1)
            for name, column in zip(names, columns, strict=True)
        }
        result = await self._inferred(model, model.name, given, model.output)
        vectors: Array = result.as_numpy(model.output).reshape(len(columns[0]), -1)
        return vectors

    async def tokenizer(self, model: ServedModel, asked: Describer, known: str) -> str:
        """Return the JSON by which a model says what tokenizes its texts; "" if that is known.

        Args:
            model: whose texts they are.
            asked: its own, `model.tokenized`.
            known: the `id` of what is known; "": nothing is.

        Raises:
            ApiError: as `vectors`.
        """
        shape = (1, 1) if asked.batched else (1,)
        given = {name: np.full(shape, b"", np.object_) for name in asked.texts}
        given[DESCRIPTION] = np.full(shape, known.encode(), np.object_)
        found = (await self._inferred(model, asked.name, given, DESCRIPTION)).as_numpy(DESCRIPTION)
        return "" if found is None else str(found.reshape(-1)[0].decode())

    async def _inferred(
        self, model: ServedModel, name: str, given: Mapping[str, Array], output: str
    ) -> Any:
        """Return the client's result of a model, or of one by this name that is a part of it."""
        wanted = [grpcclient.InferRequestedOutput(output)]
        call = asyncio.ensure_future(self._client.infer(name, _tensors(given), outputs=wanted))
        try:
            with self._watched(call):
                return await self._asked(call)
        except ApiError as error:
            raise await self._explained(model.name, error, model) from error

    async def _read(self, name: str) -> ServedModel | None:
        """Return what a model is for, and remember it."""
        self._known.pop(name, None)
        config = await self._found(name)
        model = None if config is None else read_model(config)
        if config is None or model is None:
            return None
        whole = True
        if model.input:
            model, whole = await self._tokenized(model, config)
        if whole:  # else neither is the ensemble ready
            self._known[name] = model
        return model

    async def _tokenized(
        self, model: ServedModel, config: Mapping[str, Any]
    ) -> tuple[ServedModel, bool]:
        """Return a model with who tokenizes its texts, and whether all steps were there to ask."""
        text = model.input
        while (found := describer(config)) is None:
            step, text = reader(config, text)
            if not step:
                return model, True
            its = await self._found(step)
            if its is None:
                return model, False
            config = its
        return replace(model, tokenized=found), True

    async def _found(self, name: str) -> Any | None:
        """Return a model's configuration; None where the server has none by the name."""
        try:
            return await self._config(name)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def _config(self, name: str) -> Any:
        call = self._client.get_model_config(name, as_json=True, client_timeout=READY_TIMEOUT_S)
        return (await self._asked(call))["config"]

    async def _explained(self, name: str, error: ApiError, known: ServedModel | None) -> ApiError:
        """Return what a failure means: that the model is another now, not ready, or gone.

        Triton fails a stream of such a model without a status, and other requests as not found,
        also while it ends or loads a model anew (seen on 2.51).

        Args:
            name: of the model.
            error: the failure.
            known: what the request was made for; None: not known.
        """
        if _UNHEALTHY in str(error):
            return _dead(name)
        if error.status not in _DOUBTFUL:
            return error
        now = await self._read(name)
        absence = await self._absence(name) if now is None else None
        if absence is None:
            return error if known in (None, now) else OtherDescriptionError(name)
        # Of one that the server knows it says instead that it "has no available versions".
        if str(absence).endswith(" is not found"):
            return _unknown(name)
        # One that is there by now was loaded while the server was asked, which is ready since.
        if not await self.ready() or await self._absence(name) is None:
            return _not_ready(name)
        return _unknown(name)

    async def _absence(self, model: str) -> ApiError | None:
        """Return how the server says that a model is not there; None: it is."""
        try:
            await self._config(model)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return error
        return None

    async def _asked(self, call: Any) -> Any:
        try:
            return await call
        except InferenceServerException as error:
            status = _status(error)
            raise (
                _silent() if status == _TOO_LATE else error_of_grpc(status, error.message())
            ) from error

    @contextlib.contextmanager
    def _watched(self, call: Any, beating: str = "") -> Iterator[Callable[[], None]]:
        """Cancel a call in the end, and as soon as the server, or a model, stands still.

        Args:
            call: the client's.
            beating: the model whose heartbeats come as responses; "": none do.

        Yields:
            What is called with each response.

        Raises:
            ApiError: it does.
        """
        looks = 0  # since something came

        def heard() -> None:
            nonlocal looks
            looks, self._heard = 0, time.monotonic()

        async def silence() -> ApiError:
            """Return when nothing comes, nor whether the server lives."""
            nonlocal looks
            while True:
                await asyncio.sleep(READY_TIMEOUT_S)
                looks += 1  # 2: nothing came between two, or this process had no time to see it
                if beating and looks > LOOKS:
                    return _dead(beating)
                if time.monotonic() - self._heard < READY_TIMEOUT_S:
                    continue
                try:
                    await self._client.is_server_live(client_timeout=READY_TIMEOUT_S)
                except InferenceServerException as error:
                    if _status(error) == _TOO_LATE:
                        return _silent()
                self._heard = time.monotonic()

        watch = asyncio.ensure_future(silence())
        watch.add_done_callback(lambda _: call.cancel())
        try:
            yield heard
        except asyncio.CancelledError:
            if watch.done() and not watch.cancelled():
                raise watch.result() from None
            raise
        finally:
            watch.cancel()


def _can_be_a_name(name: str) -> bool:
    """Whether the server can be asked for a model of this name."""
    try:
        return len(name.encode()) <= MAX_NAME_BYTES and "\0" not in name  # which ends a C string
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can write
        return False


def _takes_anything(model: ServedModel) -> bool:
    """Whether no request would tell that a model is another by now.

    One that describes itself takes whatever is sent to one of another backend.
    """
    return model.ability is Ability.TEXT and not model.own


def _status(error: InferenceServerException) -> str:
    return str(error.status() or "").removeprefix("StatusCode.")


def _silent() -> ApiError:
    return ApiError(
        "the server gives no answer; ask again when /health says that it is ready",
        status=HTTPStatus.SERVICE_UNAVAILABLE,
    )


def _dead(model: str) -> ApiError:
    return ApiError(
        f"the process that serves the model {model!r} has died; ask again once it is loaded anew",
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        param="model",
    )


def _not_ready(model: str) -> ApiError:
    return ApiError(
        f"the model {model!r} is not ready; ask again when /health says that the server is",
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        param="model",
    )


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
