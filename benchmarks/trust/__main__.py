"""Prints a table: each fault, and what became of the requests that were sent meanwhile."""

from __future__ import annotations

import argparse
import sys

from benchmarks.trust.faults import FAULTS
from benchmarks.trust.trial import Figures, tried

HEAD = "| fault | requests | right | errors | lost | wrong | longest gap | longest request |"


def main() -> int:
    """Try every fault; return 1 if a request was lost or wrongly answered, or failed needlessly."""
    parser = argparse.ArgumentParser(prog="benchmarks.trust", description=__doc__)
    parser.add_argument("--clients", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=15.0, help="after each fault")
    parser.add_argument("--only", metavar="TEXT", default="", help="faults whose name has this")
    arguments = parser.parse_args()
    print(HEAD, "|---" + "|---:" * 7 + "|", sep="\n", flush=True)
    bad = []
    for fault in FAULTS:
        if arguments.only not in fault.name:
            continue
        found = tried(fault, clients=arguments.clients, before_s=2.0, after_s=arguments.seconds)
        print(_row(found), flush=True)
        if found.lost or found.wrong or (found.errors and not fault.may_fail):
            bad.append(fault.name)
    if bad:
        print(f"not as it should be: {', '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


def _row(found: Figures) -> str:
    return (
        f"| {found.name} | {found.requests} | {found.right} | {found.errors} | {found.lost} "
        f"| {found.wrong} | {found.recovery_s:.1f} s | {found.longest_s:.1f} s |"
    )


if __name__ == "__main__":
    sys.exit(main())
