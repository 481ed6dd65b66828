"""Nothing that a process sends to an executor's socket ends it, grows it, or hurts a neighbour."""

import gc
import json
import logging
import os
import socket
import traceback
import typing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.any_messages import ANY, hostile_json
from builders.null_models import comes_true, num_descriptors, run_values, sums, write_null
from fakes.null_device import NullDevice
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol import messages, wire
from ge_backend.executor.server import executor as server
from ge_backend.executor.server import lanes, stub_handler
from ge_backend.executor.server.executor import Executor

# `make trust` asks for 20,000.
EXAMPLES = int(os.environ.get("GE_HOSTILE_MESSAGES", "500"))
PER_ROUND = 500
PER_CONNECTION = 4
# What one message leaves behind would be seen 20,000 times.
MAY_GROW_BYTES = 16 << 20
ASKED = (
    messages.Hello,
    messages.Attach,
    messages.Detach,
    messages.Load,
    messages.Compile,
    messages.KeepStates,
    messages.RetainTensors,
    messages.FreeTensors,
    messages.Prepare,
    messages.Run,
    messages.Cancel,
    messages.Inspect,
    messages.HistoryRequest,
    messages.OpenService,
)
KINDS = tuple(kind for kind in typing.get_args(messages.Message) if kind is not messages.Post)
STATEFUL = {
    "inputs": [
        {"name": "x", "dtype": "FP32", "dims": ["batch", "length"]},
        {"name": "s", "dtype": "FP32", "dims": ["batch", 1]},
    ],
}


class Target:
    """An executor, the models that may be loaded into it, and a neighbour that is served."""

    def __init__(self, folder):
        self.executor = Executor(NullDevice(), linger_s=0.0)
        self.source = write_null(folder / "model.null")
        self.paths = [self.source.path, write_null(folder / "other.null", **STATEFUL).path]
        self.neighbour = Session(
            self.connection, self.source, arena_bytes=4096, on_restart=pytest.fail
        )
        self.sent = 0

    def connection(self):
        return ExecutorConnection(self.socket())

    def socket(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.executor.accept(theirs)
        ours.settimeout(30)
        return ours

    def attack(self, blocks):
        """Send blocks behind an honest beginning; return once all of them were answered."""
        arena = os.memfd_create("hostile")
        os.ftruncate(arena, 4096)
        connection = self.connection()
        try:
            load = messages.Load(id=1, source=self.source)
            connection.ask(load, messages.Loaded)
            connection.ask(messages.Attach(id=2, arena=0, nbytes=4096), messages.Ok, (arena,))
            for block in blocks:
                socket.send_fds(connection.sock, [block], [arena])
                self.sent += 1
            wire.send(connection.sock, messages.Inspect(id=2**40))
            while wire_id(connection) not in {2**40, None}:
                pass
        except (BrokenPipeError, ConnectionResetError, wire.ExecutorLost):
            pass  # it was dropped, which is an answer
        finally:
            os.close(arena)
            connection.close()

    def neighbour_is_served(self):
        return sums(run_values(self.neighbour, 2.0, 3.0)) == [6.0, 9.0]


def wire_id(connection):
    """Return the id of the next answer; None once the connection is dropped."""
    answer, descriptors = connection.inbox.receive()
    for descriptor in descriptors:
        os.close(descriptor)
    return answer.id


class Tracebacks(logging.Filter):
    """Keeps the tracebacks that are logged, as text; no record, which holds on to what was sent."""

    def __init__(self):
        super().__init__()
        self.found = []

    def filter(self, record):
        if record.exc_info:
            self.found.append("".join(traceback.format_exception(*record.exc_info)))
        return False


@pytest.fixture
def tracebacks():
    found = Tracebacks()
    loggers = [stub_handler.log, lanes.log, server.log]
    for logger in loggers:
        logger.addFilter(found)
    yield found
    for logger in loggers:
        logger.removeFilter(found)


def memory_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.timeout(3600)
def test_hostile_messages_hurt_nobody(tmp_path, tracebacks):
    """Numbers of any size, unknown ids and half messages are refused without a traceback.

    The executor is the same afterwards, with no descriptor and no connection more, and a neighbour
    gets right answers all the while.
    """
    target = Target(tmp_path)
    asked, any_ = (
        hostile_json(kinds, target.paths).map(lambda packed: json.dumps(packed).encode())
        for kinds in (ASKED, KINDS)
    )
    posts = st.builds(b"\0%d\n%b".__mod__, st.tuples(ANY["numbers"], st.binary(max_size=20)))
    blocks = st.one_of(*[asked] * 8, any_, posts, st.binary(min_size=1, max_size=60))

    @settings(
        max_examples=PER_ROUND // 3,  # a dropped connection takes the rest of its messages along
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(blocks, min_size=PER_CONNECTION, max_size=PER_CONNECTION))
    def attacked(chosen):
        target.attack(chosen)
        assert tracebacks.found == [], chosen
        assert target.neighbour_is_served()

    target.attack([])
    descriptors = num_descriptors()
    memory = []
    while (
        target.sent < EXAMPLES
    ):  # in rounds: within one, hypothesis itself remembers more and more
        attacked()
        gc.collect()
        memory.append(memory_bytes())
    assert comes_true(lambda: target.executor.num_connections == 1)
    assert comes_true(lambda: num_descriptors() <= descriptors)
    assert target.executor.report(1).defects == ()
    assert memory[-1] - memory[len(memory) // 4] < MAY_GROW_BYTES
    target.neighbour.close()
    target.executor.join()
    target.executor.close()
