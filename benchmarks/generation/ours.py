"""This backend on the real server, asked over gRPC streams."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
from demo.chat_model import prepare
from rich.console import Console
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor

from benchmarks.generation.run import System
from benchmarks.generation.workloads import Ask
from benchmarks.harness.cpu import roles_of, used_s
from benchmarks.harness.memory import memory_by_role
from ge_tools.tritonserver.directory import processes_of
from ge_tools.tritonserver.installation import find_server
from ge_tools.tritonserver.options import ServerOptions
from ge_tools.tritonserver.server import TritonServer

__all__ = ["Ours"]

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "chat_model"

# Nothing is remembered, as with vLLM's `--no-enable-prefix-caching`.
CONFIG = """backend: "ge"
parameters {{ key: "precision" value {{ string_value: "{precision}" }} }}
parameters {{ key: "prefix_cache" value {{ string_value: "off" }} }}
"""


class Ours(System):
    """A server that serves the checkpoint while the block runs."""

    name = "ge"

    def __init__(self, precision: str) -> None:
        self._precision = precision
        self._folder = tempfile.TemporaryDirectory(prefix="ge-bench-")
        self._channel: Any = None

    async def __aenter__(self) -> Ours:  # noqa: PYI034
        checkpoint = prepare(CACHE, Console(stderr=True))
        model = Path(self._folder.name) / "models" / "smollm2"
        model.mkdir(parents=True)
        (model / "1").symlink_to(checkpoint, target_is_directory=True)
        (model / "config.pbtxt").write_text(CONFIG.format(precision=self._precision))
        options = ServerOptions(
            repositories=(model.parent,), log_file=Path(self._folder.name) / "server.log"
        )
        self._server = TritonServer(find_server(), options)
        await asyncio.to_thread(self._server.start)
        self._channel = grpc.aio.insecure_channel(self._server.grpc)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()
        await asyncio.to_thread(self._server.stop)
        self._folder.cleanup()

    async def tokens(self, ask: Ask) -> AsyncIterator[int]:
        """Yield how many tokens each response brings."""
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        call = stub.ModelStreamInfer(iter([_request(ask)]))
        done = 0
        async for answer in call:
            if answer.error_message:
                raise RuntimeError(answer.error_message)
            response = answer.infer_response
            for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
                if tensor.name == "num_output_tokens":
                    count = int(np.frombuffer(raw, np.uint32).sum())
                    done += count
                    yield count
            if done >= ask.tokens:
                break
        call.cancel()

    def cpu_s(self) -> float:
        """Return the CPU time of server, stub and executor."""
        return sum(used_s(roles_of(processes_of(self._server.directory.run))).values())

    def memory_mib(self) -> float:
        """Return the memory of server, stub and executor."""
        return sum(memory_by_role(processes_of(self._server.directory.run)).values()) / 2**20


def _request(ask: Ask) -> Any:
    sampling = {"max_tokens": ask.tokens, "ignore_eos": True, "temperature": 0.0}
    tensors = {
        "input_ids": ("INT64", np.array(ask.prompt, np.int64)),
        "stream": ("BOOL", np.array([True])),
        "return_num_output_tokens": ("BOOL", np.array([True])),
        "sampling_parameters": ("BYTES", np.array([json.dumps(sampling).encode()], object)),
    }
    message = service_pb2.ModelInferRequest(model_name="smollm2")
    for name, (datatype, array) in tensors.items():
        message.inputs.add(name=name, datatype=datatype).shape.extend(array.shape)
        raw = serialize_byte_tensor(array).item() if datatype == "BYTES" else array.tobytes()
        message.raw_input_contents.append(raw)
    return message
