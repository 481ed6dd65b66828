"""Model files for the null device, and executors to run them in, made by code."""

import contextlib
import gc
import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np

from builders.attempts import runs_of
from builders.waiting import comes_true  # noqa: F401 - many tests find it here
from fakes.null_device import EXECUTORS, NullDevice
from ge_backend.device.base import GraphSource
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.reopening import GRAPHS
from ge_backend.executor.process.address import ExecutorAddress
from ge_backend.executor.protocol.messages import Run
from ge_backend.executor.server.executor import Executor
from ge_backend.serving.fleet.fleet import Fleet

DEADLY = 666.0  # an input with this value ends the process, if the model says so


def write_null(path, **changes):
    """Write x [batch, length] -> y [batch], the sums of the rows; return its source."""
    model = {
        "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length"]}],
        "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
        **changes,
    }
    path.write_text(json.dumps(model))
    return GraphSource.of(path)


def deadly():
    """Return the fault of a model that some inputs kill."""
    return {"on": "run", "do": "die", "value": DEADLY}


def num_descriptors():
    """Return how many descriptors this process has open, those in garbage not among them."""
    return len(_descriptors())


def num_ours():
    """Return how many descriptors this process has open of the kinds that the backend opens.

    An engine in this process has threads of its own, which open files when they like.
    """
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    ours = {f"socket:[{line.split()[6]}]" for line in lines} | {"anon_inode:[pidfd]"}
    return sum(link in ours or link.startswith("/memfd:ge-") for link in _descriptors())


def num_within(folder):
    """Return how many descriptors of files in this folder this process has open, removed or not."""
    return sum(link.startswith(f"{folder}/") for link in _descriptors())


def _descriptors():
    """Return what the descriptors of this process are of, those in garbage not among them."""
    gc.collect()
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one by which the folder was listed
            links.append(str(entry.readlink()))
    return links


def address_in(
    folder,
    *,
    device="null",
    linger_s=0.2,
    owner_pid=0,
    python=EXECUTORS["GE_PYTHON"],
    pool_bytes=0,
    run_timeout_s=0.0,
    memory_bytes=0,
    spare_after_s=None,
    imports=(),
):
    """Return the address of a null executor that ends with this process."""
    return ExecutorAddress(
        device=device,
        directory=folder,
        owner_pid=owner_pid or os.getpid(),
        python=python,
        library_path="",
        linger_s=linger_s,
        pool_bytes=pool_bytes,
        run_timeout_s=run_timeout_s,
        memory_bytes=memory_bytes,
        spare_after_s=spare_after_s,
        imports=imports,
    )


def interpreter(folder, text):
    """Return an executable that stands in for an interpreter, a script for the shell."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def connected_to(device=None, *, linger_s=0.0):
    """Return a fresh executor inside this process, and a connection to it."""
    executor = Executor(device or NullDevice(), linger_s=linger_s)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    executor.accept(theirs)
    return executor, ExecutorConnection(ours)


def order(session, value, *, rows=2, length=3, deadline_ns=0, predict=True):
    """Stage a run whose input is `value` throughout; each row's sum is `length` times that."""
    ref = session.arena.place("x", "FP32", (rows, length), rows * length * 4)
    session.arena.view(ref)[...] = value
    places = (session.arena.place("y", "FP32", (rows,), rows * 4),) if predict else ()
    return Run(id=0, graph=0, arena=0, inputs=(ref,), outputs=places, deadline_ns=deadline_ns)


SHORT = replace(GRAPHS, first_s=0.01, most_s=0.05)


def fleet_of(session):
    """Return the fleet of this session alone, always the same one."""
    if not hasattr(session, "fleet"):
        session.fleet = Fleet({"null": session}, SHORT)
    return session.fleet


def running(session, orders, unwanted=lambda index: False):
    """Run orders that are staged; yield (index, outcome) as they end."""
    fleet = fleet_of(session)

    def staged(_, chosen, *, again):
        return [orders[index] for index in chosen]

    for ended in runs_of(fleet, [1.0] * len(orders), staged, unwanted):
        yield ended.index, ended.outcome


def run_values(session, *values, meanwhile=lambda: None):
    """Run one order per value; return the outcomes in the order of the values.

    Once the first of them has ended, `meanwhile` is called.
    """
    session.reserve(128 * len(values))
    runs = running(session, [order(session, value) for value in values])
    outcomes = dict([next(runs)])
    meanwhile()
    outcomes |= runs
    return [outcomes[index] for index in range(len(values))]


def sums(outcomes):
    """Return each outcome's first sum, or the name of its error."""
    return [
        float(np.asarray(o.outputs["y"])[0]) if o.error is None else type(o.error).__name__
        for o in outcomes
    ]
