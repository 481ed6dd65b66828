"""The server that has started this process: the configurations it was given, and serves.

A stub is handed the configuration of its own model alone. Those of others, as a fused ensemble
needs, are in their folders, where a server reads other files than config.pbtxt if it is told to
(`--model-config-name`), or has been handed in a load request. That is asked of the server itself,
which is this process's parent and speaks HTTP once it has started; before that, no load request
has come. Where it has no HTTP, or its port is shared, files alone tell.
Seen on Triton 2.51, which reads `configs/<name>.pbtxt` from 24.06 on.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ge_backend.errors import ConfigError
from ge_backend.executor.process.host_processes import (
    SERVER,
    TEMPORARY,
    Stub,
    process_of,
    seconds_up,
    stat_of,
    stubs_of,
    values_of,
    words_of,
)
from ge_backend.model.config.model_folder import read_document

__all__ = ["HostServer"]

# A server that has one thread for HTTP, and loads this model for it, answers no other meanwhile.
TIMEOUT_S = 3.0
STARTED = 19  # of `stat_of`
REPOSITORIES = ("model-repository", "model-store")


@dataclass(frozen=True, slots=True)
class HostServer:
    """A running server.

    Attributes:
        pid: its process.
        arguments: what it was started with.
        proc: where the kernel shows processes, if that is not /proc.
    """

    pid: int
    arguments: tuple[str, ...]
    proc: Path | None = None

    @classmethod
    def above(cls) -> HostServer:
        """Return the server that is this process's parent; any other parent has told nothing."""
        pid = os.getppid()
        words = words_of(process_of(pid))
        return cls(pid, tuple(words) if words and Path(words[0]).name == SERVER else ())

    @property
    def config_name(self) -> str:
        """The name of the configurations that it reads before config.pbtxt; "" without one."""
        return "".join(self._values("model-config-name")[-1:])

    def document(self, folder: Path) -> dict[str, Any]:
        """Return a model's configuration: as the server serves it, else as it would load it.

        Args:
            folder: of a model beside this one's.

        Raises:
            ConfigError: nothing can be read, or the model's files are not those of the folder: they
                came with its load request.
            DeviceUnavailable: the library that reads config.pbtxt is missing.
        """
        served = self._served(folder.name)
        if served is None:
            return read_document(folder, self.config_name)
        groups = {str(group.get("name", "")) for group in served.get("instance_group", [])}
        if any(stub.brought and stub.group in groups for stub in self._stubs()):
            raise ConfigError(
                f"model {folder.name!r} is served from files that came with its load request, "
                "which no other model can run; put them into the model repository"
            )
        return served

    def was_handed(self, directory: Path) -> bool:
        """Whether a model's configuration came with its load request.

        Args:
            directory: the model's version folder.

        Returns:
            Whether that is sure: its files came along, or the model is ready and no file of its
            folder has changed since, in which case the host loads nothing but what it is handed.
        """
        folder = directory.parent
        repositories = [name for flag in REPOSITORIES for name in self._values(flag)]
        if not repositories or any("://" in name for name in repositories):
            return False  # elsewhere all models lie in such folders
        if TEMPORARY.fullmatch(folder.name) and not any(map(folder.parent.samefile, repositories)):
            return True
        stubs = [stub for stub in self._stubs() if stub.file.is_relative_to(folder)]
        begun = [begin for begin in map(self._begin_of, stubs) if begin]
        changed = _last_change(folder)
        return any(changed < begin for begin in begun) and self._served(folder.name) is not None

    def _served(self, model: str) -> dict[str, Any] | None:
        """Return the configuration of a model that is ready; None where the server tells of none.

        It also does where it does not speak HTTP, or does not yet.
        """
        port, address = self._values("http-port"), self._values("http-address")
        closed = [value.lower() for value in self._values("allow-http")[-1:]]
        if not self.arguments or closed in (["false"], ["0"]) or self._values("reuse-http-port"):
            return None
        host = "".join(address[-1:]).removeprefix("ipv6:") or "127.0.0.1"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - of any address
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            connection = http.client.HTTPConnection(
                host, int(["8000", *port][-1]), timeout=TIMEOUT_S
            )
            with contextlib.closing(connection):
                path = f"/v2/models/{quote(model)}/config"
                connection.request("GET", path, headers={"Connection": "close", **self._key()})
                response = connection.getresponse()
                document = json.loads(response.read())
                if response.status == http.client.OK and isinstance(document, dict):
                    return document
        return None

    def _key(self) -> dict[str, str]:
        """Return the header that opens models' configurations, where the server asks for one."""
        for given in self._values("http-restricted-api"):
            groups, _, key = given.partition(":")
            name, _, value = key.partition("=")
            if "model-config" in groups.split(",") and name:
                return {name: value}
        return {}

    def _stubs(self) -> Iterator[Stub]:
        """Yield the server's stubs, but this one."""
        return (stub for stub in stubs_of(self.pid, self.proc) if stub.pid != os.getpid())

    def _begin_of(self, stub: Stub) -> float:
        """Return when a stub began, in seconds as `stat` has them; 0 for one that has ended."""
        stat = stat_of(process_of(stub.pid, self.proc))
        if len(stat) <= STARTED:
            return 0.0
        since_boot_s = int(stat[STARTED]) / os.sysconf("SC_CLK_TCK")
        return time.time() - seconds_up(self.proc) + since_boot_s

    def _values(self, flag: str) -> list[str]:
        return values_of(self.arguments, f"--{flag}")


def _last_change(folder: Path) -> float:
    """Return when something in a folder was changed last, in seconds as `stat` has them."""
    entries = [folder, *folder.rglob("*")]
    return max((max(_changed(entry)) for entry in entries), default=0.0)


def _changed(entry: Path) -> tuple[float, float]:
    """Return when a file was changed, and what it leads to."""
    own = entry.lstat().st_ctime
    try:
        return own, entry.stat().st_ctime
    except OSError:
        return own, own
