"""Looks for known vulnerabilities in the pinned dependencies: `python deploy/audit.py`.

Ends with 1 if there is one that is not listed below. Where no index of them can be reached it says
so and ends with 0: a check must not depend on the network.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["KNOWN", "main", "verdict"]

PINNED = Path(__file__).resolve().parents[1] / "constraints.txt"
TIMEOUT_S = 120
# Vulnerability -> why it does not matter here.
KNOWN: Mapping[str, str] = {}


def main() -> int:
    """Audit, print what was found, and return the exit status."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(PINNED)]
    command += ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json"]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        found = json.loads(done.stdout)["dependencies"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        print(f"dependencies were not audited: no index can be reached ({error})")
        return 0
    text, status = verdict(found)
    print(text)
    return status


def verdict(found: list[dict[str, Any]]) -> tuple[str, int]:
    """Return what to say of pip-audit's findings, and the exit status."""
    audited = [package for package in found if "skip_reason" not in package]
    if not audited:
        return "dependencies were not audited: the index knows none of them", 0
    lines = [f"{len(audited)} of {len(found)} pinned dependencies were audited"]
    bad = False
    for package in audited:
        for vulnerability in package["vulns"]:
            names = {vulnerability["id"], *vulnerability.get("aliases", [])}
            reason = next((KNOWN[name] for name in names if name in KNOWN), "")
            bad = bad or not reason
            fixed = ", ".join(vulnerability.get("fix_versions", [])) or "none yet"
            what = f"{package['name']} {package['version']}: {vulnerability['id']}"
            why = reason or "not known to be harmless here"
            lines.append(f"{what}, fixed in {fixed}: {why}")
    return "\n".join(lines), int(bad)


if __name__ == "__main__":
    sys.exit(main())
