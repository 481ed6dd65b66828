"""This backend on the real server, asked over HTTP: `/generate_stream`."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType

from demo.chat_model import prepare
from rich.console import Console

from benchmarks.generation.events import events
from benchmarks.generation.run import System
from benchmarks.generation.workloads import Ask
from benchmarks.harness.cpu import roles_of, used_s
from benchmarks.harness.memory import memory_by_role
from ge_tools.tritonserver.directory import processes_of
from ge_tools.tritonserver.installation import find_server
from ge_tools.tritonserver.options import ServerOptions
from ge_tools.tritonserver.server import TritonServer

__all__ = ["Ours", "config_of"]

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "chat_model"

NOTHING_ELSE: Mapping[str, str] = MappingProxyType({})

# Nothing is remembered, as with vLLM's `--no-enable-prefix-caching`.
CONFIG = """backend: "ge"
parameters { key: "prefix_cache" value { string_value: "off" } }
"""
PARAMETER = """parameters {{ key: "{}" value {{ string_value: "{}" }} }}
"""


def config_of(parameters: Mapping[str, str]) -> str:
    """Return the model's config.pbtxt."""
    return CONFIG + "".join(PARAMETER.format(*each) for each in parameters.items())


class Ours(System):
    """A server that serves the checkpoint while the block runs.

    Args:
        precision: the parameter of this name.
        further: parameters of the model.
    """

    def __init__(self, precision: str, further: Mapping[str, str] = NOTHING_ELSE) -> None:
        self.name = "ge, set so" if further else "ge"
        self._parameters = {"precision": precision, **further}
        self._folder = tempfile.TemporaryDirectory(prefix="ge-bench-")

    async def __aenter__(self) -> Ours:  # noqa: PYI034
        checkpoint = prepare(CACHE, Console(stderr=True))
        model = Path(self._folder.name) / "models" / "smollm2"
        model.mkdir(parents=True)
        (model / "1").symlink_to(checkpoint, target_is_directory=True)
        (model / "config.pbtxt").write_text(config_of(self._parameters))
        options = ServerOptions(
            repositories=(model.parent,), log_file=Path(self._folder.name) / "server.log"
        )
        self._server = TritonServer(find_server(), options)
        await asyncio.to_thread(self._server.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._server.stop)
        self._folder.cleanup()

    async def tokens(self, ask: Ask) -> AsyncIterator[int]:
        """Yield how many tokens each response brings."""
        sampling = {"max_tokens": ask.tokens, "ignore_eos": True, "temperature": 0.0}
        asked = {
            "input_ids": ask.prompt,
            "stream": True,
            "return_num_output_tokens": True,
            "sampling_parameters": json.dumps(sampling),
        }
        path = "/v2/models/smollm2/generate_stream"
        async for answer in events(self._server.http, path, asked):
            if "error" in answer:
                raise RuntimeError(answer["error"])
            yield int(answer["num_output_tokens"])

    def cpu_s(self) -> float:
        """Return the CPU time of server, stub and executor."""
        return sum(used_s(roles_of(processes_of(self._server.directory.run))).values())

    def memory_mib(self) -> float:
        """Return the memory of server, stub and executor."""
        return sum(memory_by_role(processes_of(self._server.directory.run)).values()) / 2**20
