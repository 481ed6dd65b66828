"""Keep what a run's tests took, and print it: `python tests/durations.py REPORT.xml`.

The report is what `make test` and `make test-all` write. Files that take longest begin first.
"""

import json
import sys
from pathlib import Path

from tiers import DURATIONS, written_durations


def main(report: Path) -> None:
    """Write tests/durations.json and print the thirty longest files, and how much of all they are."""
    durations = written_durations(report)
    DURATIONS.write_text(json.dumps(durations, indent=1) + "\n")
    whole = sum(durations.values())
    print(f"{whole:.0f} s in {len(durations)} files of more than a second each")
    for name, took in list(durations.items())[:30]:
        print(f"{took:7.1f} s  {took / whole:4.0%}  {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
