"""What serves a model instance: graphs, or a language model where its folder holds a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import triton_python_backend_utils as pb_utils

from ge_backend.config.model import MachineConfig, ModelConfig
from ge_backend.device.files.checkpoint import is_checkpoint
from ge_backend.host.backend import Backend
from ge_backend.host.counters import Counters
from ge_backend.host.generation import Generation
from ge_backend.host.logs import install_handler
from ge_backend.host.npu_smi import open_sensors
from ge_backend.host.numpy_check import check_numpy
from ge_backend.metrics import Recorder
from ge_backend.serving.generation import open_generation

__all__ = ["Instance", "open_instance"]


class Instance(Protocol):
    """A model instance, as the stub has it."""

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer requests: a response for each, None where one is sent; None: all are sent."""

    @property
    def ready(self) -> bool:
        """Whether requests make sense now."""

    def close(self) -> None:
        """Serve what waits and leave the executors."""


def open_instance(args: dict[str, str]) -> Instance:
    """Load the model that the host's `args` describe.

    Raises:
        GeError: it cannot be served as configured; the host reports it at load.
    """
    if not is_checkpoint(Path(pb_utils.get_model_dir())):
        return Backend.open(args)
    install_handler(args["model_name"])
    check_numpy(allow_2=MachineConfig.read(os.environ, owner_pid=os.getppid()).numpy_2)
    config = ModelConfig.read(
        json.loads(args["model_config"]),
        directory=Path(pb_utils.get_model_dir()),
        version=args["model_version"],
        environment=os.environ,
    )
    recorder = Recorder()

    def note_restart(device: str) -> None:
        recorder.add("ge_executor_restarts_total", device=device)

    client = open_generation(config, recorder, on_restart=note_restart)

    def look() -> None:
        recorder.set("ge_device_up", client.ready, device=config.device)
        client.look()

    labels = {"model": config.name, "version": config.version, "device": config.device}
    counters = Counters(recorder, labels, look)
    sensors = open_sensors(config.placement.devices, os.environ, recorder)
    return Generation(client, recorder, (*sensors, counters))
