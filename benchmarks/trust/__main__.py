"""Prints a table: each fault, and what became of the requests that were sent meanwhile."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.trust.faults import FAULTS, Fault, mounted
from benchmarks.trust.soak import soak
from benchmarks.trust.trial import SLOW_S, Figures, tried

HEAD = (
    "| fault | requests | right | errors | lost | wrong | longest gap | longest request "
    "| as usual after |"
)
CELLS = HEAD.count("|") - 2
UNSHARE = ("unshare", "--mount")


def main() -> int:
    """Try every fault; return 1 if one, or the soak, is not as it should be.

    That is: no request is lost or wrongly answered, or fails needlessly, none runs twice where
    nothing makes it, and the server answers at the end.
    """
    parser = argparse.ArgumentParser(prog="benchmarks.trust", description=__doc__)
    parser.add_argument("--clients", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=15.0, help="after each fault")
    parser.add_argument("--only", metavar="TEXT", default="", help="faults whose name has this")
    parser.add_argument("--soak", type=float, default=0.0, metavar="SECONDS", help="and a soak")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if arguments.only in fault.name]
    if not chosen:
        names = "; ".join(fault.name for fault in FAULTS)
        parser.error(f"no fault has {arguments.only!r} in its name; there are: {names}")
    if not arguments.alone:
        print(HEAD, "|---" + "|---:" * CELLS + "|", sep="\n", flush=True)
    bad = [fault.name for fault in chosen if not _is_well(fault, arguments)]
    if arguments.soak and not arguments.alone:
        text, well = soak(arguments.clients, arguments.soak)
        print(text, flush=True)
        bad += [] if well else ["soak"]
    if bad:
        print(f"not as it should be: {', '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


def _is_well(fault: Fault, arguments: argparse.Namespace) -> bool:
    """Print the row of a fault; return whether it is as it should be."""
    if fault.disks and not arguments.alone:
        return _in_its_own_sight(fault, sys.argv[1:])
    reason = mounted(fault.disks)
    if reason:
        print(f"| {fault.name} | not tried: {reason} |" + " |" * (CELLS - 1), flush=True)
        return True
    seconds = arguments.seconds
    found = tried(fault, clients=arguments.clients, before_s=2.0, after_s=seconds)
    print(_row(found), flush=True)
    lost = found.lost and not fault.may_lose
    away = not found.right or found.silent_s > SLOW_S
    repeated = found.run is not None and found.run != found.requests
    return not (lost or found.wrong or away or repeated or (found.errors and not fault.may_fail))


def _in_its_own_sight(fault: Fault, given: Sequence[str]) -> bool:
    """Try a fault in a process that sees disks of its own, which takes the rights to mount."""
    command = [*UNSHARE, sys.executable, "-m", "benchmarks.trust", *given, "--alone"]
    done = subprocess.run([*command, "--only", fault.name], check=False)
    if done.returncode not in {0, 1}:
        print(f"| {fault.name} | not tried: no rights to mount |" + " |" * (CELLS - 1), flush=True)
    return done.returncode != 1


def _row(found: Figures) -> str:
    return (
        f"| {found.name} | {found.requests} | {found.right} | {found.errors} | {found.lost} "
        f"| {found.wrong} | {found.recovery_s:.1f} s | {found.longest_s:.1f} s "
        f"| {found.settled_s:.1f} s |"
    )


if __name__ == "__main__":
    sys.exit(main())
