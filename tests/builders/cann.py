"""A CANN that has nothing but a fake `atc`, laid out as the real one is."""

import json
import sys
from pathlib import Path

FAKE_ATC = Path(__file__).resolve().parent.parent / "fakes" / "atc.py"


def fake_cann(folder, version="8.5.0"):
    """Write an installation into a folder and return it."""
    for name in ("bin", "x86_64-linux"):
        (folder / name).mkdir(parents=True)
    atc = folder / "bin" / "atc"
    # A child of the script, not in its place: so it is with the real one.
    atc.write_text(f'#!/bin/bash\n"{sys.executable}" "{FAKE_ATC}" "$@"\n')
    atc.chmod(0o755)
    (folder / "set_env.sh").write_text('export SOURCED="arguments: $1"\n')
    for package in ("toolkit", "ops"):
        (folder / "x86_64-linux" / f"ascend_{package}_install.info").write_text(
            f"package_name=Ascend-cann-{package}\nversion={version}\npath={folder}\n"
        )
    return folder


def runs_of_atc(file):
    """Return what the fake noted in FAKE_ATC_RUNS, one entry per run."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
