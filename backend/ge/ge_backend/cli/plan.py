"""`ge-backend plan`: what a model repository takes of its devices, before anything is started."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from ge_backend.cli.model.demand import Demand, measure_demand
from ge_backend.cli.model.repository import model_folders
from ge_backend.cli.report.memory import Repository, memory_json, memory_text, plan_devices
from ge_backend.cli.report.memory_plot import write_memory_plot
from ge_backend.cli.report.waiting import waiting
from ge_backend.config.model import MachineConfig
from ge_backend.config.model_folder import read_backend
from ge_backend.config.sizes import parse_device_bytes, size_of_device
from ge_backend.errors import GeError
from ge_backend.tritonserver import BACKEND

__all__ = ["register"]

DOES_NOT_FIT = 1
DESCRIPTION = """\
Opens the models of a repository one after another, runs the largest buckets of each, and prints
what each takes: weights, buffers, and its range of the workspace pool. The exit code is 1 where
something does not fit or cannot be loaded.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "plan", help="show the memory plan of a model repository", description=DESCRIPTION
    )
    parser.add_argument(
        "repository", type=Path, metavar="MODEL_REPOSITORY", help="the folder of models"
    )
    parser.add_argument(
        "--pool",
        metavar="SIZE",
        help="of the workspace pool: 12GiB, or npu:0=12GiB,2GiB; default: GE_WORKSPACE_POOL",
    )
    parser.add_argument("--device", help="for all models; default: as they are configured")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a PNG of it")
    parser.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="where traffic is kept; default: GE_CACHE_DIR"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=plan)


def plan(arguments: argparse.Namespace) -> int:
    """Print the plan; return 0 if a server could load the repository so.

    Raises:
        ConfigError: there is no such repository, or it is empty; the size is none.
        DeviceUnavailable: a picture is wanted and matplotlib is missing.
    """
    sizes: Mapping[str, int]
    if arguments.pool is None:
        sizes = MachineConfig.read(os.environ, owner_pid=os.getpid()).workspace_pool
    else:
        sizes = parse_device_bytes(arguments.pool, "--pool")
    demands, broken, left_out = _survey(arguments)
    devices = {device for demand in demands for device in demand.devices}
    pools = {device: size_of_device(sizes, device) for device in devices}
    repository = Repository(
        devices=plan_devices(demands, pools), broken=broken, left_out=tuple(left_out)
    )
    if arguments.plot is not None:
        write_memory_plot(arguments.plot, repository)
    print(memory_json(repository) if arguments.json else "\n".join(memory_text(repository)))
    return 0 if repository.fits else DOES_NOT_FIT


def _survey(arguments: argparse.Namespace) -> tuple[list[Demand], dict[str, str], list[str]]:
    """Return what each model needs, what is wrong with those that are broken, and the others."""
    folders = model_folders(arguments.repository)
    demands: list[Demand] = []
    broken: dict[str, str] = {}
    left_out: list[str] = []
    for number, folder in enumerate(folders, start=1):
        try:
            if read_backend(folder) != BACKEND:
                left_out.append(folder.name)
                continue
            with waiting(f"opening {folder.name}, {number} of {len(folders)}"):
                demands.append(
                    measure_demand(folder, device=arguments.device, cache_dir=arguments.cache_dir)
                )
        except GeError as error:
            broken[folder.name] = str(error)
    return demands, broken, left_out
