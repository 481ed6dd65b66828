"""The API's endpoints: HTTP in, calls of the server out, and errors as OpenAI writes them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
import urllib.request
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ge_openai.access import check_key
from ge_openai.answer import TextAnswerWriter, event
from ge_openai.api_error import ApiError
from ge_openai.calling import Calling, read_calling
from ge_openai.chat_template import ChatTemplate
from ge_openai.connected import ClientGoneError, merged, while_connected
from ge_openai.described import DescribedModels
from ge_openai.forms import ChatForm, CompletionForm, Form
from ge_openai.incoming import Incoming
from ge_openai.models import Ability, ServedModel
from ge_openai.options import FrontOptions
from ge_openai.page import headers_of, read_page
from ge_openai.paths import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MODELS,
    RERANK,
    SCORE,
    no_such_path,
)
from ge_openai.structure import FREE, Held, format_alone
from ge_openai.template_folders import Templates
from ge_openai.text_body import ChatBody, ReplyForm, read_chat, read_completion
from ge_openai.text_call import Piece, TextCall
from ge_openai.triton import OtherDescriptionError, TritonConnection
from ge_openai.vector_endpoints import VectorEndpoints
from ge_openai.vllm_backend import check_held, error_of_vllm, vllm_calls

__all__ = ["Endpoints", "make_app"]

METRICS_TIMEOUT_S = 5.0
# Between the names of a model and of one of its adapters.
ADAPTER = ":"
# Of every 401. Source: RFC 9110, 15.5.2, and RFC 6750, 3.
_KEY_NEEDED = {"www-authenticate": "Bearer"}
# It is not read: what nginx writes into its log when a client has closed the connection.
CLIENT_CLOSED = 499

Pieces = AsyncGenerator[tuple[int, list[Piece]], None]
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(options: FrontOptions) -> Starlette:
    """Return the ASGI application; it connects to the server when it is started."""
    endpoints = Endpoints(options)
    guarded, vectors = endpoints.guarded, endpoints.of_vectors
    return Starlette(
        routes=[
            Route("/", endpoints.page),
            Route("/health", endpoints.health),
            Route("/metrics", guarded(endpoints.metrics)),
            Route(MODELS, guarded(endpoints.models)),
            Route(f"{MODELS}/{{name:path}}", guarded(endpoints.one_model)),
            Route(COMPLETIONS, guarded(endpoints.completions), methods=["POST"]),
            Route(CHAT, guarded(endpoints.chat), methods=["POST"]),
            Route(EMBEDDINGS, guarded(vectors.embeddings), methods=["POST"]),
            *(Route(path, guarded(vectors.rerank), methods=["POST"]) for path in RERANK),
            *(Route(path, guarded(vectors.score), methods=["POST"]) for path in SCORE),
        ],
        exception_handlers={
            HTTPStatus.NOT_FOUND: no_such_path,
            HTTPStatus.METHOD_NOT_ALLOWED: no_such_path,
            Exception: _unforeseen,
        },
        lifespan=endpoints.lifespan,
    )


class Endpoints:
    """What answers requests."""

    def __init__(self, options: FrontOptions) -> None:
        self._options = options
        self._templates = Templates(options.tokenizers, options.read_tokenizer)
        self._described = DescribedModels(lambda: self._triton)
        self._incoming = Incoming(options)
        self.of_vectors = VectorEndpoints(self._incoming, lambda: self._triton)
        self._started = int(time.time())
        self._page = read_page()
        self._triton: TritonConnection

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Hold the connection to the server."""
        self._triton = TritonConnection(self._options.url)
        try:
            yield
        finally:
            await self._triton.close()

    def guarded(self, endpoint: Endpoint) -> Endpoint:
        """Return an endpoint that asks for a key and answers what goes wrong."""

        async def answer(request: Request) -> Response:
            try:
                check_key(request.headers.get("authorization", ""), self._options.keys)
                return await endpoint(request)
            except ApiError as error:
                needed = _KEY_NEEDED if error.status == HTTPStatus.UNAUTHORIZED else None
                return JSONResponse(error.body(), error.status, needed)
            except (ClientGoneError, ClientDisconnect):
                return Response(status_code=CLIENT_CLOSED)

        return answer

    async def page(self, _: Request) -> Response:
        """Answer with the page, without a key: what it asks for needs a key."""
        return HTMLResponse(self._page, headers=headers_of(self._page))

    async def health(self, _: Request) -> Response:
        """Answer 200 while the server and all of its models are ready, else 503."""
        ready = await self._triton.ready()
        status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"ready": ready}, status)

    async def metrics(self, _: Request) -> Response:
        """Answer with the server's own metrics."""
        if not self._options.metrics:
            raise ApiError("the server's metrics are not known here", status=HTTPStatus.NOT_FOUND)
        try:
            block, kind = await asyncio.to_thread(_fetch, self._options.metrics)
        except (OSError, ValueError, HTTPException) as error:  # ValueError: it is no URL
            raise ApiError(
                f"the server's metrics cannot be had: {error}", status=HTTPStatus.BAD_GATEWAY
            ) from error
        return Response(block, headers={"content-type": kind})

    async def models(self, _: Request) -> Response:
        """List the models that can be asked, each with its adapters behind it."""
        return JSONResponse({"object": "list", "data": await self._listed()})

    async def one_model(self, request: Request) -> Response:
        """Describe one model."""
        name = request.path_params["name"]
        for described in await self._listed():
            if described["id"] == name:
                return JSONResponse(described)
        await self._writer(name)  # one that is not ready is not listed, and it tells so
        raise ApiError(
            f"the model {name!r} does not exist here",
            status=HTTPStatus.NOT_FOUND,
            code="model_not_found",
        )

    async def completions(self, request: Request) -> Response:
        """Write on behind prompts."""
        asked = read_completion(await self._incoming.body(request))
        model, adapter = await self._writer(asked.reply.model)
        form = CompletionForm(asked.reply.top)
        held = format_alone(asked.answer) if asked.answer else FREE
        sampling = _adapted({**asked.sampling, **held.sampling}, adapter)
        calls = self._calls(asked.reply, model, asked.prompts, sampling)
        with _renamed_errors(model, held, sampling):
            return await self._written(request, asked.reply, form, calls, held)

    async def chat(self, request: Request) -> Response:
        """Write the next message of a chat."""
        asked = read_chat(await self._incoming.body(request))
        self._incoming.check_texts((asked.forced or "",), "tool_choice")  # the answer repeats it
        try:
            return await self._chat(request, asked)
        except OtherDescriptionError as error:
            self._described.forget(error.model)
            return await self._chat(request, asked)

    async def _chat(self, request: Request, asked: ChatBody) -> Response:
        model, adapter = await self._writer(asked.reply.model)
        template, described = await self._template(model)
        prompt, calling = await asyncio.to_thread(_prompted, asked, template, own=model.own)
        form = ChatForm(asked.reply.top, calling.reader, several=asked.several)
        wanted = {**asked.sampling, **calling.held.sampling, **calling.sampling}
        if not model.own:
            check_held(calling.held)
            del wanted["add_special_tokens"]  # it always does, see `_prompted`
        sampling = _adapted(wanted, adapter)
        calls = self._calls(asked.reply, model, (prompt,), sampling, described)
        with _renamed_errors(model, calling.held, sampling):
            return await self._written(request, asked.reply, form, calls, calling.held)

    async def _template(self, model: ServedModel) -> tuple[ChatTemplate, str]:
        """Return a model's chat template, and the id of the description that has it.

        That of a folder that was named for it goes before its own, and has no id.

        Raises:
            ApiError: it is not known, or cannot be read.
        """
        if model.own and model.name not in self._options.tokenizers:
            return await self._described.template(model.name)
        return await asyncio.to_thread(self._templates.of, model.name), ""

    async def _writer(self, name: str) -> tuple[ServedModel, dict[str, Any]]:
        """Return the language model that a name means, and the parameters that its adapter needs.

        Raises:
            ApiError: there is no such model, or it is not ready; whether there is the adapter, the
                model says.
        """
        model, _, adapter = name.rpartition(ADAPTER)
        if model and adapter:
            try:
                return await self._triton.model(model, Ability.TEXT), {"lora_name": adapter}
            except ApiError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
        # Else it may be the name of a model.
        return await self._triton.model(name, Ability.TEXT), {}

    def _calls(
        self,
        reply: ReplyForm,
        model: ServedModel,
        prompts: Sequence[str | tuple[int, ...]],
        sampling: dict[str, Any],
        described: str = "",
    ) -> list[TextCall]:
        """Return what a language model is asked, in the order of prompts and their samples."""
        self._incoming.check_texts(prompts, "prompt")
        calls = [
            TextCall(
                model=model.name,
                prompt=prompt,
                sampling=sampling,
                stream=reply.stream,
                logprobs=reply.top is not None,
                counts=reply.usage or not reply.stream,
                samples=reply.samples,
                described=described,
            )
            for prompt in prompts
        ]
        return calls if model.own else [each for call in calls for each in vllm_calls(call)]

    async def _written(
        self,
        request: Request,
        reply: ReplyForm,
        form: Form,
        calls: Sequence[TextCall],
        held: Held,
    ) -> Response:
        """Answer with what a language model writes behind prompts."""
        head = {
            "id": f"{form.prefix}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": reply.model,
        }
        samples = calls[0].samples
        writer = TextAnswerWriter(
            form,
            head,
            len(calls) * samples,
            reply.samples,
            usage=reply.usage,
            running=reply.running_usage,
            held=held.param,
        )
        pieces = merged([self._triton.write(call) for call in calls])
        if not reply.stream:
            await while_connected(request, _collect(pieces, writer, samples))
            return JSONResponse(writer.whole())
        # What fails before the first token is still a status of its own.
        first = await while_connected(request, _first(pieces))
        return _EventStream(_events(first, pieces, writer, samples))

    async def _listed(self) -> list[dict[str, Any]]:
        """Return what clients learn about each model, and each adapter of one."""
        listed = []
        for model in await self._triton.models():
            listed.append(self._entry(model, model.name))
            if model.ability is Ability.TEXT:
                names = await self._adapters(model)
                listed += [
                    {**self._entry(model, f"{model.name}{ADAPTER}{name}"), "parent": model.name}
                    for name in names
                ]
        return listed

    async def _adapters(self, model: ServedModel) -> Sequence[str]:
        """Return the names of a language model's adapters; none where it cannot be asked for them.

        One of Triton's vLLM backend has them, and does not say which.
        """
        with contextlib.suppress(ApiError):
            return await self._described.adapters(model.name) if model.own else ()
        return ()

    def _entry(self, model: ServedModel, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "triton",
            "ability": model.ability.value,
        }


def _prompted(asked: ChatBody, template: ChatTemplate, *, own: bool) -> tuple[str, Calling]:
    """Return the prompt of a chat, and how its answer may call tools; in a thread: both read.

    Raises:
        ApiError: the template refuses the messages.
    """
    prompt = template.render(asked.messages, asked.tools, asked.rendering)
    if not (own or asked.sampling["add_special_tokens"]):
        prompt = prompt.removeprefix(template.begins)
    return prompt, read_calling(asked, template)


class _EventStream(StreamingResponse):  # type: ignore[misc] # starlette is not installed everywhere
    """Server-sent events; whatever ends them, they are closed."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_UNCACHED)
        self._events = events

    async def __call__(self, *asgi: Any) -> None:
        try:
            await super().__call__(*asgi)
        finally:
            await self._events.aclose()


# A proxy that collects a stream before it passes it on would spoil it.
_UNCACHED = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def _adapted(sampling: dict[str, Any], adapter: dict[str, Any]) -> dict[str, Any]:
    """Return sampling parameters with those that the model's name asks for.

    Raises:
        ApiError: they ask for something else themselves.
    """
    adapted = {**sampling, **adapter}
    if adapted != {**adapter, **sampling}:
        raise ApiError("model and lora_name ask for two adapters; leave one out", param="lora_name")
    return adapted


@contextlib.contextmanager
def _renamed_errors(model: ServedModel, held: Held, sampling: Iterable[str]) -> Iterator[None]:
    """Give a model's error the words of the request, such as the name of its own field.

    What is said of a parameter begins with its name.
    """
    try:
        yield
    except ApiError as error:
        named, _, _ = str(error).partition(" ")
        if error.param is None and named in {"prompt", *sampling}:
            error.param = named
        raise (held.renamed if model.own else error_of_vllm)(error) from error


async def _collect(pieces: Pieces, writer: TextAnswerWriter, samples: int) -> None:
    async with contextlib.aclosing(pieces):
        async for call, found in pieces:
            for sample, piece in enumerate(found):
                writer.take(call * samples + sample, piece)


async def _first(pieces: Pieces) -> tuple[int, list[Piece]] | None:
    """Return what comes first, None if nothing does."""
    return await anext(pieces, None)


async def _events(
    first: tuple[int, list[Piece]] | None, pieces: Pieces, writer: TextAnswerWriter, samples: int
) -> AsyncGenerator[bytes, None]:
    """Yield the events of an answer; an error that comes now is the last one."""
    async with contextlib.aclosing(pieces):
        item = first
        try:
            while item is not None:
                call, found = item
                for sample, piece in enumerate(found):
                    for block in writer.events(call * samples + sample, piece):
                        yield block
                item = await _first(pieces)
        except ApiError as error:
            yield event(error.body())
            return
        for block in writer.end():
            yield block


def _fetch(url: str) -> tuple[bytes, str]:
    """Return a page of the operator's own server, so by no proxy, and its type."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=METRICS_TIMEOUT_S) as answer:
        return answer.read(), answer.headers.get("content-type", "text/plain")


def _unforeseen(_: Request, __: Exception) -> Response:
    error = ApiError("the server failed unexpectedly; its log says why", status=500)
    return JSONResponse(error.body(), error.status)
