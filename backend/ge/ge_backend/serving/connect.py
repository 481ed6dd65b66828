"""From a model's configuration to sessions with its devices' executors."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from ge_backend.device.base import GraphSource
from ge_backend.device.machine.cores import usable_cores
from ge_backend.device.machine.host_memory import host_memory
from ge_backend.device.preload import imports_for
from ge_backend.errors import DeviceUnavailable, ModelError
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.served_files import ServedFiles
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.process.inline import InlineExecutors
from ge_backend.executor.process.kept_files import KeptFiles, kept_root
from ge_backend.executor.process.launch import connect
from ge_backend.executor.process.spare import is_wanted
from ge_backend.executor.protocol.messages import NORMAL
from ge_backend.model.config.declared import NOTHING_DECLARED, Declared
from ge_backend.model.config.described import with_description
from ge_backend.model.config.engine_table import ALIASED_ENDS, SILENT_ENDS
from ge_backend.model.config.model import MachineConfig, ModelConfig
from ge_backend.model.config.settings import VLLM
from ge_backend.model.config.sizes import size_of_device
from ge_backend.model.files.ir_file import ir_aliases
from ge_backend.model.files.model_file import canonical, find_model_file
from ge_backend.model.files.tokenizer_file import TOKENIZER
from ge_backend.model.files.usable import check_usable
from ge_backend.serving.assumptions.completion import whole_document
from ge_backend.serving.fleet.fleet import Fleet
from ge_backend.serving.warmup.store import Store

__all__ = [
    "ARENA_BYTES",
    "AUTO",
    "complete_document",
    "executor_of",
    "kept_files",
    "open_fleet",
    "open_session",
    "reference_of",
    "runs_inline",
    "source_of",
    "tokenizer_of",
]

log = logging.getLogger(__name__)

ARENA_BYTES = 1 << 20
# A name for the first engine that can, as when none is named.
AUTO = "auto"
# A run of an encoder on more cores than these gains little from more.
USEFUL_THREADS = 4
# Until then a server that starts has opened its models, or most of them.
SPARE_AFTER_S = 5.0
# What shows a process some devices of a kind only, numbered anew.
# Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; CANN, "Environment Variables".
VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}


def open_fleet(
    config: ModelConfig,
    *,
    on_restart: Callable[[str], None],
    served_as: str = "",
    inline: InlineExecutors | None = None,
) -> Fleet:
    """Load the model on all its devices.

    The first one goes ahead, so that a model that cannot be loaded fails once, and what has to be
    compiled is compiled once.

    Args:
        config: the model's.
        on_restart: called with the device's name whenever an executor was found dead.
        served_as: its name in metrics and timelines, where that is not the model's own.
        inline: shared with other fleets of the model, as its graph is then; None: with no others.

    Raises:
        ModelError, DeviceUnavailable, OutOfMemory: it cannot be loaded on one of them.
    """
    sessions: dict[str, Session] = {}

    def opened(device: str) -> None:
        restarted = functools.partial(on_restart, device)
        session = open_session(
            config, device, on_restart=restarted, served_as=served_as, inline=inline
        )
        sessions[device] = session

    first, *others = config.placement.devices
    try:
        opened(first)
        with ThreadPoolExecutor(max(1, len(others))) as threads:
            loading = [threads.submit(opened, device) for device in others]
        for future in loading:
            future.result()
    except BaseException:
        for session in sessions.values():
            session.close()
        raise
    return Fleet({device: sessions[device] for device in config.placement.devices})


def open_session(
    config: ModelConfig,
    device: str,
    *,
    on_restart: Callable[[], None],
    served_as: str = "",
    inline: InlineExecutors | None = None,
) -> Session:
    """Load the model into a device's executor, starting that if it does not run yet.

    The arguments are as for `open_fleet`.

    Raises:
        ModelError: there is no model file, or it cannot be loaded.
        DeviceUnavailable: the device or its engine is not there.
    """
    source = source_of(config, device)
    path = Path(source.path)
    imports = imports_for(device, path, engine=source.engine, precision=config.precision)
    session = Session(
        executor_of(config, device, imports, inline),
        source,
        arena_bytes=ARENA_BYTES,
        on_restart=on_restart,
        priority=config.priority,
        served_as=served_as or config.name,
    )
    session.served.copy = kept_files(config, session.served)
    if config.lanes not in {0, session.lanes}:
        log.warning(
            "%s executes %d runs at once, not %d: another model has opened it so; set GE_LANES",
            device,
            session.lanes,
            config.lanes,
        )
    return session


def reference_of(config: ModelConfig) -> Callable[[str, str], Session]:
    """Return what loads the model on an engine of this name, in this precision.

    Raises:
        GeError: as `open_session`; raised by what is returned.
    """

    def opened(engine: str, precision: str) -> Session:
        asked = replace(config, engine=engine, precision=precision)
        return open_session(asked, config.device, on_restart=lambda: None)

    return opened


def complete_document(document: Mapping[str, Any], given: ModelConfig) -> dict[str, Any]:
    """Return a model's configuration, completed from its graph, which stays loaded for a while.

    One that names its inputs and outputs is returned as it is, and no executor is asked.

    Raises:
        GeError: the graph cannot be loaded.
    """
    if given.inputs and given.outputs:
        return dict(document)
    session = open_session(given, given.device, on_restart=lambda: None)
    try:
        machine = MachineConfig.here()
        whole = whole_document(document, given, session, Store(machine.cache_dir))
        return whole if tokenizer_of(given) is None else with_description(whole)
    finally:
        session.close()


def kept_files(config: ModelConfig, served: ServedFiles) -> KeptFiles | None:
    """Return a copy of what was loaded; an executor inside this process is never started anew."""
    machine = MachineConfig.here()
    if runs_inline(config, machine):
        return None
    root, most = kept_root(machine.runtime_dir, os.getppid()), machine.kept_bytes
    return KeptFiles.of(served.place, served.files, served.stamp, root=root, most_bytes=most)


def source_of(config: ModelConfig, device: str) -> GraphSource:
    """Return what a model's graph is loaded from on a device.

    Raises:
        ModelError: there is no model file, or it is not what its name says.
    """
    path = find_model_file(config.directory, config.filename, device)
    check_usable([path])
    source = GraphSource.of(
        path,
        precision=config.precision,
        engine="" if config.engine == AUTO else config.engine,
        threads=config.threads or _threads_apart(config),
        options=config.options,
        declared=_declared(config, path),
    )
    check_usable(source.files())
    return source


def tokenizer_of(config: ModelConfig) -> Path | None:
    """Return the `tokenizer.json` that is a model's graph; None where that is another file."""
    with contextlib.suppress(ModelError):  # who opens the model is told
        path = find_model_file(config.directory, config.filename, config.device)
        if path.name.endswith(TOKENIZER):
            return canonical(path, config.options)
    return None


def _declared(config: ModelConfig, path: Path) -> Declared:
    """Return what the engine has to know of config.pbtxt; with more, models share no graph."""
    if path.name.endswith(SILENT_ENDS):
        return Declared.of(config)
    if not path.name.endswith(ALIASED_ENDS):
        return NOTHING_DECLARED
    aliases = ir_aliases(path, {tensor.name for tensor in (*config.inputs, *config.outputs)})
    return Declared.of(config).only(aliases)


def executor_of(
    config: ModelConfig,
    device: str,
    imports: tuple[str, ...] = (),
    inline: InlineExecutors | None = None,
) -> Callable[[], ExecutorConnection]:
    """Return what connects to a device's executor, and starts that if it does not run yet.

    The server is this process's parent (Triton starts its stubs itself), and the executor ends
    with it. A spare one preloads `imports`, where one is kept. One in this process is among
    `inline`.
    """
    machine = MachineConfig.here()
    pool_bytes = size_of_device(machine.workspace_pool, device)
    if runs_inline(config, machine):
        lanes = config.lanes or _inline_lanes(config)
        executors = inline or InlineExecutors()
        return functools.partial(
            executors.connect, device, pool_bytes, lanes, machine.run_timeout_s
        )
    address = ExecutorAddress(
        device=device,
        directory=machine.runtime_dir,
        owner_pid=os.getppid(),
        python=machine.python,
        library_path=machine.library_path,
        linger_s=machine.linger_s,
        pool_bytes=pool_bytes,
        lanes=config.lanes,
        run_timeout_s=machine.run_timeout_s,
        memory_bytes=size_of_device(machine.executor_memory, device),
        spare_after_s=_spare_after_s(machine),
        imports=imports,
    )
    if config.engine == VLLM:
        address = _apart(address, config, machine)
    return functools.partial(connect, address)


def runs_inline(config: ModelConfig, machine: MachineConfig) -> bool:
    """Whether a model's executor is in its instance's own process, said so or by itself.

    By itself it is where there is nothing to share: one instance, on a CPU, that asks for nothing
    which models have in common there.
    """
    if config.executor != "auto":
        return config.executor == "inline"
    shared = config.lanes or config.priority != NORMAL
    limited = size_of_device(machine.workspace_pool, "cpu") or size_of_device(
        machine.executor_memory, "cpu"
    )
    return config.placement.kind == "cpu" and config.instances == 1 and not (shared or limited)


def _inline_lanes(config: ModelConfig) -> int:
    """Return how many runs at once an executor has that is one instance's: on a CPU, few.

    An instance has one batch at a time, and one run on all cores after another answers as much as
    several side by side on one core each, the first of them sooner, and takes one session less: two
    lanes of one thread were 0.93 to 1.0 times as fast on two quiet cores, with 90 to 130 MB more.
    Beyond `USEFUL_THREADS` for a run there are more lanes.
    """
    if config.placement.kind != "cpu":
        return 0
    cores = usable_cores()
    return max(min(config.instances, cores), cores // USEFUL_THREADS, 1)


def _threads_apart(config: ModelConfig) -> int:
    """Return the CPU threads of a run of one of several instances that are apart; else 0.

    Executors inside their instances do not see each other's runs, so none of these is alone, and
    each has its share of the cores.
    """
    lanes = _inline_lanes(config)
    if config.instances == 1 or not lanes:
        return 0
    machine = MachineConfig.here()
    return usable_cores() // lanes if runs_inline(config, machine) else 0


def _spare_after_s(machine: MachineConfig) -> float | None:
    cores, memory = usable_cores(), host_memory().total_bytes
    return SPARE_AFTER_S if is_wanted(machine.spare, cores, memory) else None


def _apart(
    address: ExecutorAddress, config: ModelConfig, machine: MachineConfig
) -> ExecutorAddress:
    """Return the executor that a model has for itself, which shows its engine the model's devices.

    vLLM opens the devices itself and numbers those it sees from 0.

    Raises:
        DeviceUnavailable: the server does not see one of them.
    """
    name = hashlib.blake2b(str(config.directory.resolve()).encode(), digest_size=4).hexdigest()
    return replace(
        address,
        python=machine.vllm_python,
        pool_bytes=0,
        memory_bytes=0,
        spare_after_s=None,
        apart=f"{VLLM}-{name}",
        environment=_visible(config),
    )


def _visible(config: ModelConfig) -> dict[str, str]:
    """Return what shows a process a model's devices only, which count among the server's."""
    kind = config.placement.kind
    if kind not in VISIBLE:
        return {}
    variable = VISIBLE[kind]
    numbers = [int(name.partition(":")[2]) for name in config.placement.devices]
    if kind == "npu":  # CANN takes a list that ascends
        numbers.sort()
    given = os.environ.get(variable)
    if given is None:
        return {variable: ",".join(map(str, numbers))}
    shown = [entry.strip() for entry in given.split(",") if entry.strip()]
    if (highest := max(numbers)) >= len(shown):
        raise DeviceUnavailable(
            f"there is no {kind}:{highest}: this process sees {len(shown)}, "
            f"{variable}={given}; they count from 0"
        )
    return {variable: ",".join(shown[number] for number in numbers)}
