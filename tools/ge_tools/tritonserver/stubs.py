"""The processes of a running server: which one listens at a port, and which stubs it has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ge_openai.address import addresses_here, reached_at

__all__ = ["Stub", "arguments_of", "processes", "server_at", "stubs_of", "words_of"]

SERVER = "tritonserver"
STUB = "triton_python_backend_stub"
DEFAULT_HTTP_PORT = 8000
EVERYWHERE = "0.0.0.0"  # noqa: S104 - compared
# As one word or as two, as getopt_long(3) takes it. libevhtp marks addresses of IPv6 by a word.
HTTP_PORT = re.compile(r"\0--http-port[=\0](\d{1,5})(?=\0)")
HTTP_ADDRESS = re.compile(r"\0--http-address[=\0](?:ipv6:)?([^\0]+)(?=\0)")
PROC = Path("/proc")
# How the host calls the folder of a model whose files came with its load (seen on 2.51).
TEMPORARY = re.compile(r"folder[A-Za-z0-9]{6}")


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


def server_at(host: str, port: int) -> int:
    """Return the process of the server whose HTTP is there; 0 where none is seen here."""
    asked = addresses_here(reached_at(host))
    for process in processes() if asked else ():
        words = words_of(process)
        if not words or Path(words[0]).name != SERVER:
            continue
        line = "\0".join([*words, ""])
        ports = HTTP_PORT.findall(line) or [DEFAULT_HTTP_PORT]
        listens = (HTTP_ADDRESS.findall(line) or [EVERYWHERE])[-1]
        if int(ports[-1]) == port and listens in {EVERYWHERE, "::", *asked}:
            return int(process.name)
    return 0


def arguments_of(server: int) -> list[str]:
    """Return what a server was started with; nothing where it is not seen."""
    return words_of(PROC / str(server))


def stubs_of(server: int) -> list[Stub]:
    """Return the stubs of a server that live; those of other users cannot be seen.

    Source: python_backend r24.10 src/pb_stub.cc: the first two arguments are the model's file, as
    `<model>/<version>/model.py`, and the name of the region; the eighth is the instance, which
    core names after its group, `<group>_<number>` (src/backend_model.cc). In place of `model.py`
    stands what `default_model_filename` says, which may have folders in it, numbers among them.
    """
    found = []
    for process in processes():
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


def processes() -> Iterator[Path]:
    """Give the folders of all processes that can be seen."""
    return (path for path in PROC.iterdir() if path.name.isdigit())


def words_of(process: Path) -> list[str]:
    """Return a process's command line; nothing for one that has ended, also if it is a zombie."""
    try:
        text = (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return text.split("\0") if text else []


def _parent(process: Path) -> int:
    """Return the parent's id. Source: proc(5), /proc/pid/stat: state (3), ppid (4)."""
    try:
        text = (process / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])
