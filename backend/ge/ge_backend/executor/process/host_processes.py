"""The processes of a running server, as the kernel shows them: its arguments, and its stubs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "SERVER",
    "STUB",
    "TEMPORARY",
    "Stub",
    "process_of",
    "processes",
    "seconds_up",
    "stat_of",
    "stubs_of",
    "values_of",
    "words_of",
]

SERVER = "tritonserver"
STUB = "triton_python_backend_stub"
PROC = Path("/proc")
# How the host calls the folder of a model whose files came with its load (seen on 2.51).
TEMPORARY = re.compile(r"folder[A-Za-z0-9]{6}")
PARENT = 1  # of `stat_of`


@dataclass(frozen=True, slots=True, kw_only=True)
class Stub:
    """A process that runs one instance of a Python model.

    Attributes:
        models: what its model may be called: whose folder holds a version's, of which several may
            be above a file. Its name is one of them unless the folder is the host's.
        region: the name of its shared memory.
        group: the name of its group of the model's instances.
        file: the model's, by which it was started.
    """

    pid: int
    models: tuple[str, ...]
    region: str
    group: str = ""
    file: Path = Path()

    @property
    def brought(self) -> Path | None:
        """The folder of a model whose files came with its load request; None for any other."""
        folders = (path for path in self.file.parents if TEMPORARY.fullmatch(path.name))
        return next(folders, None)

    def serves(self, model: str, groups: Collection[str]) -> bool:
        """Whether it is a stub of this model, which has these groups of instances."""
        if any(TEMPORARY.fullmatch(name) for name in self.models):
            return self.group in groups
        return model in self.models


def stubs_of(server: int, proc: Path | None = None) -> list[Stub]:
    """Return the stubs of a server that live; those of other users cannot be seen.

    Source: python_backend r24.10 src/pb_stub.cc: the first two arguments are the model's file, as
    `<model>/<version>/model.py`, and the name of the region; the eighth is the instance, which
    core names after its group, `<group>_<number>` (src/backend_model.cc). In place of `model.py`
    stands what `default_model_filename` says, which may have folders in it, numbers among them.

    Args:
        server: its process.
        proc: where the kernel shows processes, if that is not /proc.
    """
    found = []
    for process in processes(proc):
        words = words_of(process)
        if len(words) > 2 and Path(words[0]).name == STUB and _parent(process) == server:  # noqa: PLR2004 - see above
            versions = [path for path in Path(words[1]).parents if path.name.isdigit()]
            found.append(
                Stub(
                    pid=int(process.name),
                    models=tuple(version.parent.name for version in versions),
                    region=words[2],
                    group="".join(words[8:9]).rpartition("_")[0],
                    file=Path(words[1]),
                )
            )
    return found


def process_of(pid: int, proc: Path | None = None) -> Path:
    """Return the folder of a process, whether it is there or not."""
    return (proc or PROC) / str(pid)


def processes(proc: Path | None = None) -> Iterator[Path]:
    """Give the folders of all processes that can be seen."""
    return (path for path in (proc or PROC).iterdir() if path.name.isdigit())


def words_of(process: Path) -> list[str]:
    """Return a process's command line; nothing for one that has ended, also if it is a zombie."""
    try:
        text = (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return text.removesuffix("\0").split("\0") if text else []


def values_of(arguments: Sequence[str], flag: str, shortest: str = "") -> list[str]:
    """Return each value of a server's flag, as one word or as two, in the order of the arguments.

    The flag may be shortened, as getopt_long(3) takes it, to no less than the length of `shortest`,
    where it becomes another one's, too; "" is not at all.
    """
    found = []
    for argument, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        if flag.startswith(name) and len(name) >= len(shortest or flag):
            found.append(value if equals else following)
    return found


def stat_of(process: Path) -> list[str]:
    """Return the fields of /proc/pid/stat from the state on; nothing for one that has ended.

    Source: proc(5): behind the name in brackets come state (3), ppid (4) … starttime (22).
    """
    try:
        text = (process / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def seconds_up(proc: Path | None = None) -> float:
    """Return how long the machine has been up. Source: proc(5), /proc/uptime."""
    return float(((proc or PROC) / "uptime").read_text(encoding="utf-8").split()[0])


def _parent(process: Path) -> int:
    return int("".join(stat_of(process)[PARENT : PARENT + 1]) or 0)
