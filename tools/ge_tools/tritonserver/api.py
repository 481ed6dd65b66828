"""What a running server says about its models over HTTP, and what it is told."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ge_backend.errors import ServerError
from ge_openai.address import host_port
from ge_tools.tritonserver.keys import Keys, opening

__all__ = ["LoadRequest", "ServerApi"]

TIMEOUT_S = 10.0
# A load returns when the model is ready, or has failed.
LOAD_TIMEOUT_S = 3600.0
# Keys that begin so belong to the host; backends leave them alone.
MARK = "TRITON_LOADED_ANEW"
# Signs that stand in the path of a URL as they are, beside letters and digits.
PLAIN = "!$&'()*+,;=:@"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """What the server is asked with to load a model.

    Attributes:
        config: the configuration, by the fields of its JSON.
        files: the model's, by their places in its folder; without any that of the repository is
            read.
    """

    config: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerApi:
    """The HTTP interface of one server; each call has a connection of its own.

    All raise ServerError where the server does not answer, or refuses; of those that return whether
    it lives or is ready, only where it asks for a key.

    Attributes:
        keys: what opens its restricted groups, such as a server's `http_keys`.
        timeout_s: how long an answer may take, but for loads, which take their time.
    """

    host: str
    port: int
    keys: Keys = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S

    def is_live(self) -> bool:
        """Whether the server answers at all; its metrics port answers any path with nothing."""
        live = self._text_of("/v2/health/live") is not None
        return live and (self._text_of("/v2") or "").startswith("{")

    def is_ready(self) -> bool:
        """Whether the server calls itself and all its models ready."""
        return self.answers("/v2/health/ready")

    def answers(self, path: str) -> bool:
        """Whether there is a page at a path; ServerError as of `is_ready`."""
        return self._text_of(path) is not None

    def version(self) -> str:
        """Return the server's version: `2.51.0`."""
        return str(self._ask("GET", "/v2")["version"])

    def ready_versions(self) -> Counter[str]:
        """Return how many versions of each model the server calls ready.

        As its statistics say: its index leaves out models whose folder is away (seen on 2.51).
        """
        models = self._ask("GET", "/v2/models/stats")["model_stats"]
        return Counter(str(entry["name"]) for entry in models)

    def states(self, model: str) -> list[tuple[str, str]]:
        """Return state and reason of each version of a model that the server knows of."""
        index = self._ask("POST", "/v2/repository/index", {})
        return [
            (str(entry["state"]), str(entry.get("reason", "")))
            for entry in index
            if entry["name"] == model and "state" in entry
        ]

    def python_instances(self, model: str) -> list[str]:
        """Return the group of each stub of a version of a ready model; none for other backends.

        A name that no request line can hold (a space, letters beyond ASCII) is none of a Python
        model: the host could not have started a stub for it.
        """
        if quote(model, safe=PLAIN) != model:
            return []
        config = self._ask("GET", f"/v2/models/{model}/config")
        if config.get("backend") not in {"ge", "python"}:
            return []
        groups: list[str] = []
        for group in config.get("instance_group", []):
            count = int(group.get("count", 1)) * max(1, len(group.get("gpus", [])))
            groups += [str(group.get("name", ""))] * count
        return groups

    def served(self, model: str) -> LoadRequest:
        """Return what loads a ready model as it is served, from its folder."""
        return LoadRequest(config=self._ask("GET", f"/v2/models/{model}/config"))

    def load(self, model: str, asked: LoadRequest | None = None, times: int = 0) -> None:
        """Load a model, or another beside it that takes its place; return when it is ready.

        The host loads what is loaded already only where its configuration is another one, so it
        gets a parameter that is not read, with a number that it has not had.

        Args:
            model: its name.
            asked: what it is loaded from; None is what lies in its folder.
            times: that number.
        """
        document: dict[str, Any] = {}
        if asked is not None:
            marked = {MARK: {"string_value": str(times)}}
            parameters = {**asked.config.get("parameters", {}), **marked}
            config = {"config": json.dumps({**asked.config, "parameters": parameters})}
            files = {
                f"file:{name}": base64.b64encode(content).decode()
                for name, content in asked.files.items()
            }
            document = {"parameters": {**config, **files}}
        path = f"/v2/repository/models/{model}/load"
        self._ask("POST", path, document, timeout_s=LOAD_TIMEOUT_S)

    def unload(self, model: str) -> None:
        """Begin to unload a model."""
        self._ask("POST", f"/v2/repository/models/{model}/unload", {})

    def _text_of(self, path: str) -> str | None:
        """Return what the server answers; None where it does not, or refuses but for a key."""
        try:
            status, text = self._answer("GET", path, None, self.timeout_s)
        except ServerError:
            return None
        if status == http.client.FORBIDDEN:
            raise ServerError(f"{self._where(path)}: {status} {text}")
        return text if status == http.client.OK else None

    def _ask(
        self,
        method: str,
        path: str,
        document: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        body = None if document is None else json.dumps(document)
        status, text = self._answer(method, path, body, timeout_s or self.timeout_s)
        if status != http.client.OK:
            raise ServerError(f"{self._where(path)}: {status} {text}")
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise ServerError(f"{self._where(path)} is no JSON: {text[:80]!r}") from error

    def _answer(
        self, method: str, path: str, body: str | None, timeout_s: float
    ) -> tuple[int, str]:
        """Return status and text of any answer."""
        try:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
            with contextlib.closing(connection):
                # Without "close" the connection would hold up the server's end.
                headers = {"Connection": "close", **opening(path, self.keys)}
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                return response.status, response.read().decode(errors="replace")
        except (OSError, ValueError, http.client.HTTPException) as error:  # no name of a host, too
            raise ServerError(f"{self._where(path)}: {error}") from error

    def _where(self, path: str) -> str:
        return f"{host_port(self.host, self.port)}{path}"
