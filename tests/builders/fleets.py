"""Fleets over executors inside the test's process, and what to run on them."""

import threading
from dataclasses import replace

from builders.attempts import runs_of
from builders.bench import Bench
from builders.null_models import SHORT, order, sums, write_null
from ge_backend.serving.fleet.fleet import Fleet


class Fleets:
    """A fleet over executors in this process, and what to run on it."""

    def __init__(self, folder, count, **model):
        source = write_null(folder / "model.null", **model)
        self.benches = [Bench(source, index) for index in range(count)]
        names = [bench.device.name for bench in self.benches]
        sessions = [bench.session() for bench in self.benches]
        self.fleet = Fleet(dict(zip(names, sessions, strict=True)), SHORT)
        for session in sessions:
            session.fleet = self.fleet
        self.staged, self.gates = [], []

    def hold(self, place, begun=lambda: None):
        """Let no run on this device end until the event is set; each says when it has begun."""
        gate = threading.Event()
        self.gates.append(gate)
        self.benches[place].device.faults.strike = lambda *_: (begun(), gate.wait(20))
        return gate

    def begin(
        self,
        values,
        costs=None,
        *,
        unwanted=lambda _: False,
        deadlines=(),
        meanwhile=lambda: None,
        **changes,
    ):
        """Begin to run one order per value; it yields what has ended."""

        def stage(session, chosen, *, again):
            self.staged.append((session, tuple(chosen), again))
            session.reserve(128 * len(chosen), keep=again)
            return [replace(order(session, values[index]), **changes) for index in chosen]

        costs = costs or [1000.0] * len(values)
        return runs_of(self.fleet, costs, stage, unwanted, deadlines, meanwhile)

    def run(self, values, costs=None, **changes):
        """Return the outcomes in the order of the values, and the device of each."""
        ended = sorted(self.begin(values, costs, **changes), key=lambda end: end.index)
        assert [end.index for end in ended] == list(range(len(values)))
        return [end.outcome for end in ended], [end.device for end in ended]

    def answers(self, *values):
        return sums(self.run(values)[0])

    def up(self):
        return [state.up for state in self.fleet.states()]

    def close(self):
        for gate in self.gates:
            gate.set()
        for bench in self.benches:
            bench.close()
