"""A model instance as the host describes it, and what publishes its figures beside serving."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ge_backend.executor.process.reloads import times_reloaded
from ge_backend.host.counters import Counters
from ge_backend.host.logs import install_handler
from ge_backend.host.numpy_check import check_numpy
from ge_backend.host.response_parameters import check_response_parameters
from ge_backend.host.version_folder import version_folder
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import MachineConfig, ModelConfig

__all__ = ["Instance"]


@dataclass(frozen=True, slots=True)
class Instance:
    """What is known of a model instance before it is opened.

    Attributes:
        name: the host's, among all instances of the model.
        given: the host's configuration of the model, as its JSON says it.
        config: ours, read from it.
        recorder: where all of it counts.
    """

    name: str
    given: Mapping[str, Any]
    machine: MachineConfig
    config: ModelConfig
    recorder: Recorder

    @classmethod
    def read(cls, args: Mapping[str, str]) -> Instance:
        """Return what the host's `args` describe; from now on logs go to the host.

        Raises:
            ConfigError: it cannot be used as configured, or not with this numpy.
        """
        install_handler(args["model_name"])
        machine = MachineConfig.here()
        check_numpy(allow_2=machine.numpy_2)
        given = json.loads(args["model_config"])
        config = ModelConfig.read(
            given,
            directory=version_folder(given),
            version=args["model_version"],
            environment=os.environ,
        )
        check_response_parameters(wanted=config.response_parameters)
        recorder = Recorder()
        recorder.set("ge_model_heals", float(times_reloaded(machine.runtime_dir, config.name)))
        return cls(args["model_instance_name"], given, machine, config, recorder)

    def note_restart(self, device: str) -> None:
        """Count that a device's executor was found dead."""
        self.recorder.add("ge_executor_restarts_total", device=device)

    def counters(self, sample: Callable[[], None], *, device: str) -> Counters:
        """Start the thread that publishes figures; it is the caller's to close.

        Args:
            sample: as for `Counters`.
            device: the label of what has none of its own.
        """
        labels = {"model": self.config.name, "version": self.config.version, "device": device}
        return Counters(self.recorder, labels, sample, instance=self.name)
