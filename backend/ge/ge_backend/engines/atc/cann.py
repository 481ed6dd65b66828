"""Where CANN is on this machine, which version it is, and how its programs are started.

Its `set_env.sh` is sourced for every program: an executor does not have the server's
LD_LIBRARY_PATH and PYTHONPATH, and `atc` finds its operators through both.
Source of the places: the installation guides of CANN 8.0 to 9.0 (`ascend-toolkit/latest` before
8.5, `cann` since), hicann/ge docs/zh/build.md for `ascend_toolkit_install.info`.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ge_backend.errors import DeviceUnavailable

__all__ = ["Cann", "find_cann"]

VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
PREFIX = Path("/usr/local/Ascend")
FOLDERS = ("cann", "ascend-toolkit/latest")
PROGRAMS = ("bin/atc", "compiler/bin/atc")
# Files that name versions, the best first; of one kind all count: kernels are a package of theirs.
VERSION_FILES = ("*-linux/ascend_*_install.info", "version.cfg", "compiler/version.info")
# Lines in them that tell versions apart. The others say where things were installed.
VERSION_KEYS = ("version", "innerversion", "Version", "compiler_running_version")
UNKNOWN = "unknown"
# Runs a program in CANN's environment. Its process group lives as long as standard input is open:
# atc starts processes of its own, and all of them must go when the process that waits for it does.
# set_env.sh gets an empty argument, else it would see the program's.
SCRIPT = """\
if [ -n "$1" ]; then . "$1" "" >/dev/null; fi
shift
exec 3<&0 </dev/null
"$@" 3<&- &
program=$!
{ read -r -u 3; kill -KILL -- -$$; } &
wait $program
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cann:
    """One installation.

    Attributes:
        atc: the compiler.
        set_env: the script that sets its environment; None where there is none.
        version: what tells it from other versions; of no further form.
    """

    atc: Path
    set_env: Path | None
    version: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs `atc` in its environment.

        It has to lead a process group, with a pipe as its standard input; closing the pipe, or
        dying, ends it.
        """
        script = str(self.set_env or "")
        return ["bash", "-c", SCRIPT, "atc", script, str(self.atc), *arguments]

    def shown(self, arguments: Sequence[str]) -> str:
        """Return the same for a person's shell."""
        line = shlex.join([str(self.atc), *arguments])
        return line if self.set_env is None else f". {shlex.quote(str(self.set_env))} && {line}"


def find_cann(environment: Mapping[str, str], prefix: Path = PREFIX) -> Cann:
    """Return the CANN whose `atc` is on PATH, else of its variables, else of the usual folders.

    Args:
        environment: HOME, PATH and CANN's own variables count.
        prefix: where root installs it; other users have it in their HOME.

    Raises:
        DeviceUnavailable: there is no `atc`; says where it was looked for.
    """
    roots = [Path(environment[name]) for name in VARIABLES if environment.get(name)]
    for base in (prefix, Path(environment.get("HOME", "/")) / prefix.name):
        roots += [base / folder for folder in FOLDERS]
    places = [root / program for root in roots for program in PROGRAMS]
    on_path = shutil.which("atc", path=environment.get("PATH", ""))
    candidates = [*([Path(on_path)] if on_path else []), *places]
    found = [_installation(atc.absolute()) for atc in candidates if atc.is_file()]
    # Another program may have the name: there is a game.
    named = [cann for cann in found if not cann.version.startswith(UNKNOWN)]
    if found:
        return (named or found)[0]
    looked = ", ".join(map(str, roots))
    raise DeviceUnavailable(
        "ONNX is compiled for an NPU with atc, which is neither on PATH nor in any of "
        f"{looked}; install the CANN toolkit, or compile where it is with 'ge-backend compile' "
        "and put the model.om beside the model.onnx"
    )


def _installation(atc: Path) -> Cann:
    # Above the program as it was found, then above the file that it links to.
    roots = (*atc.parents[1:4], *atc.resolve().parents[1:4])
    scripts = (folder / "set_env.sh" for root in roots for folder in (root, root.parent))
    return Cann(
        atc=atc,
        set_env=next((script for script in scripts if script.is_file()), None),
        version=next(filter(None, map(_version, roots)), "") or _unknown(atc),
    )


def _version(root: Path) -> str:
    for pattern in VERSION_FILES:
        lines = [
            f"{file.stem.removesuffix('_install')} {line.strip()}"
            for file in sorted(root.glob(pattern))
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
            if line.partition("=")[0].strip() in VERSION_KEYS
        ]
        if lines:
            return ", ".join(lines)
    return ""


def _unknown(atc: Path) -> str:
    """Return what changes when a compiler that names no version is replaced."""
    state = atc.stat()
    return f"{UNKNOWN}, atc of {state.st_size} bytes from {state.st_mtime_ns}"
