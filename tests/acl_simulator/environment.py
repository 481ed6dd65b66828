"""A simulator out of environment variables, for processes that only `import acl`."""

import json
from collections.abc import Mapping
from pathlib import Path

from acl_simulator.simulator import Simulator

__all__ = ["FAULTS", "INBOX", "REPORT", "from_environment", "to_environment"]

PREFIX = "ACL_SIMULATOR_"
FAULTS, INBOX, REPORT = PREFIX + "FAULTS", PREFIX + "INBOX", PREFIX + "REPORT"
# variable -> argument of `Simulator`; values are JSON, or else text
OPTIONS = {
    PREFIX + "DEVICES": "devices",
    PREFIX + "HBM": "hbm_bytes",
    PREFIX + "SOC": "soc",
    PREFIX + "DELAY": "delay_s",
    PREFIX + "TIME_SCALE": "time_scale",
    PREFIX + "OWNED_ELSEWHERE": "owned_elsewhere",
    PREFIX + "WITHOUT": "without",
    PREFIX + "VNPU": "vnpu",
    PREFIX + "PLANS_RANGES": "plans_ranges",
}


def from_environment(environment: Mapping[str, str]) -> Simulator:
    """Return the simulator that `ACL_SIMULATOR_*` describe.

    `_FAULTS` is a JSON list of arguments of `Simulator.fail`, or of `hang` if they have
    `"hang": true`. `_INBOX` names a file that may come later and holds such a list: it is taken
    and removed before the next call. `_REPORT` names a file that is written after each
    synchronisation, each misuse, and at the end.
    """
    options = {
        argument: _value(environment[variable])
        for variable, argument in OPTIONS.items()
        if variable in environment
    }
    simulator = Simulator(**options)
    simulator.expect(json.loads(environment.get(FAULTS, "[]")))
    if INBOX in environment:
        simulator.take_faults_from(Path(environment[INBOX]))
    if REPORT in environment:
        simulator.report_to(Path(environment[REPORT]))
    return simulator


def to_environment(**options: object) -> dict[str, str]:
    """Return the variables for arguments of `Simulator`."""
    variables = {argument: variable for variable, argument in OPTIONS.items()}
    return {variables[argument]: json.dumps(value) for argument, value in options.items()}


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
