"""`ge-backend plan`: what a model repository takes of its devices, before anything is started."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ge_backend.errors import ConfigError, GeError
from ge_backend.kinds import FUSED, kind_of
from ge_backend.model.config.model import MachineConfig
from ge_backend.model.config.model_folder import read_folder
from ge_backend.model.config.sizes import parse_device_bytes, size_of_device
from ge_tools.model.demand import Demand, measure_demand
from ge_tools.model.replicas import load_text, plan_load
from ge_tools.model.repository import is_ours, model_folders, refused_folders
from ge_tools.report.memory import Repository, memory_json, memory_text, plan_devices
from ge_tools.report.waiting import waiting

__all__ = ["register"]

DOES_NOT_FIT = 1
DESCRIPTION = """\
Opens the models of a repository one after another, runs the largest buckets of each, and prints
what each takes: weights, buffers, and its range of the workspace pool. The exit code is 1 where
something does not fit or cannot be loaded.

With --load and --p99: how many servers one model needs for so many requests per second, from what
its runs cost here and the sizes that were recorded (docs/scale.md).
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
    parser.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="where traffic is kept; default: GE_CACHE_DIR"
    )
    parser.add_argument("--load", type=float, metavar="RATE", help="requests per second")
    parser.add_argument(
        "--p99", type=float, metavar="MS", help="milliseconds that 99 of 100 may take, with --load"
    )
    parser.add_argument("--model", metavar="NAME", help="which one, with --load")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(func=plan)


def plan(arguments: argparse.Namespace) -> int:
    """Print the plan; return 0 if a server could load the repository so.

    Raises:
        ConfigError: there is no such repository, or it is empty; the size is none.
    """
    if arguments.load is not None:
        return _plan_load(arguments)
    if arguments.p99 is not None or arguments.model is not None:
        raise ConfigError("--p99 and --model are of use with --load only; give that, too")
    sizes: Mapping[str, int]
    if arguments.pool is None:
        sizes = MachineConfig.here().workspace_pool
    else:
        sizes = parse_device_bytes(arguments.pool, "--pool")
    demands, broken, left_out = _survey(arguments)
    devices = {device for demand in demands for device in demand.devices}
    pools = {device: size_of_device(sizes, device) for device in devices}
    repository = Repository(
        devices=plan_devices(demands, pools), broken=broken, left_out=tuple(left_out)
    )
    print(memory_json(repository) if arguments.json else "\n".join(memory_text(repository)))
    return 0 if repository.fits else DOES_NOT_FIT


def _plan_load(arguments: argparse.Namespace) -> int:
    if arguments.p99 is None:
        raise ConfigError("--load needs --p99: the milliseconds that 99 of 100 requests may take")
    if arguments.pool is not None:
        raise ConfigError("--pool is of use without --load only; leave it out")
    folders = {folder.name: folder for folder in model_folders(arguments.repository)}
    ours = [name for name, folder in folders.items() if is_ours(folder)]
    name = arguments.model or (ours[0] if len(ours) == 1 else "")
    if name not in ours:
        said = f"--model is {name!r}" if name else "--load is of one model, which --model names"
        raise ConfigError(f"{said}; expected one of {', '.join(ours)}")
    with waiting(f"opening {name}"):
        planned = plan_load(
            folders[name],
            arguments.load,
            arguments.p99 / 1e3,
            device=arguments.device,
            cache_dir=arguments.cache_dir,
        )
    print(json.dumps(asdict(planned)) if arguments.json else "\n".join(load_text(planned)))
    return 0


def _survey(arguments: argparse.Namespace) -> tuple[list[Demand], dict[str, str], list[str]]:
    """Return what each model needs, what is wrong with those that are broken, and the others."""
    folders = model_folders(arguments.repository)
    demands: list[Demand] = []
    broken = dict(refused_folders(arguments.repository))
    left_out: list[str] = []
    for number, folder in enumerate(folders, start=1):
        try:
            if not is_ours(folder) or kind_of(read_folder(folder)) is FUSED:
                left_out.append(folder.name)
                continue
            with waiting(f"opening {folder.name}, {number} of {len(folders)}"):
                demands.append(
                    measure_demand(folder, device=arguments.device, cache_dir=arguments.cache_dir)
                )
        except GeError as error:
            broken[folder.name] = str(error)
    return demands, broken, left_out
