"""An executor that grows too large is replaced in order: every run is answered, rightly."""

import time

from builders.null_models import run_values, sums, write_null
from ge_backend.executor.server.memory import SETTLE_S

LIMIT = 300 << 20
PATIENCE_S = 40.0


def test_an_executor_that_grows_is_replaced_between_runs(machine, tmp_path):
    """Before the limit nothing happens; then another process goes on, and no run fails or is lost."""
    grow = {"on": "run", "do": "grow", "mib": 10, "value": 7.0}
    source = write_null(tmp_path / "model.null", faults=[grow], cost_ms={"*": 5})
    session = machine.session(source, memory_bytes=LIMIT)
    pid = machine.pid()
    time.sleep(SETTLE_S + 2)  # what it has now is what it needs
    assert sums(run_values(session, *range(1, 7))) == [3.0 * value for value in range(1, 7)]
    assert (machine.pid(), machine.restarts) == (pid, 0)
    end = time.monotonic() + PATIENCE_S
    while machine.restarts == 0 and time.monotonic() < end:
        assert sums(run_values(session, 7, 1)) == [21, 3]
        time.sleep(0.05)
    assert machine.restarts == 1
    assert sums(run_values(session, 2)) == [6]
    assert machine.pid() != pid
