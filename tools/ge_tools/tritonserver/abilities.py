"""What a release of Triton can do, read from what it says of itself and never guessed.

The binary's own help names its flags, before anything is started. Its release stands in a file of
the container, or is told by a running server; a wheel says neither until it runs.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ge_backend.errors import ServerError
from ge_tools.tritonserver.installation import ServerInstallation

__all__ = ["ABILITIES", "NEWEST", "OLDEST", "Abilities", "Release", "ReleaseAbility", "release_of"]

Release = tuple[int, int]
# Older ones have not been tried, and some lack the flags by which `serve` keeps model control.
OLDEST: Release = (2, 44)
# The newest that all of this has run on.
NEWEST: Release = (2, 70)
HELP_TIMEOUT_S = 30.0
_FLAG = re.compile(r"^\s*--([a-z0-9][a-z0-9-]*)", re.MULTILINE)
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseAbility:
    """Something that not every release has.

    Attributes:
        since: the first release that has it, and the container that brought it.
        what: it is, for people.
        flag: of the server, which says whether it is there; "" where only the release does.
        means: for who runs it.
    """

    since: Release
    container: str
    what: str
    means: str
    flag: str = ""


# Sources: triton-inference-server's server, core and python_backend, by their release branches;
# the commits are named beside each.
ABILITIES: Mapping[str, ReleaseAbility] = {
    "numpy_2": ReleaseAbility(  # python_backend 09c3537
        since=(2, 52),
        container="24.11",
        what="stubs read arrays of numpy 2",
        means="numpy 2 may be beside them: `ge-backend serve` allows it where the server's "
        "`TRITON_VERSION` says so, else set `GE_NUMPY_2=allow`; before, leave it refused",
    ),
    "first_response": ReleaseAbility(  # core c815a13, for all models d261b8d
        since=(2, 52),
        container="24.11",
        what="a histogram of times to the first response, of models that generate text; "
        "from 2.65 (26.01) on of all",
        means="`--metrics-config=histogram_latencies=true` fills the "
        "dashboard's panel (docs/deploy.md); the one of first tokens is filled on every release",
    ),
    "lasting_regions": ReleaseAbility(  # server a861e56fb
        since=(2, 53),
        container="24.12",
        what="unregistering shared memory in use is put off",
        means="before, it is refused (INTERNAL), and the client tries again",
    ),
    "response_parameters": ReleaseAbility(  # python_backend 1ea48a6
        since=(2, 55),
        container="25.02",
        what="responses of Python models have parameters",
        means="`response_parameters: on` has a model say by them how a response came about; "
        "before, such a model is refused",
    ),
    "response_pool": ReleaseAbility(
        since=(2, 56),
        container="25.03",
        flag="grpc-max-response-pool-size",
        what="bounded pools of gRPC responses",
        means="`ge-backend serve --grpc-response-pool`",
    ),
    "grpc_threads": ReleaseAbility(
        since=(2, 57),
        container="25.04",
        flag="grpc-infer-thread-count",
        what="a number of threads that take gRPC requests",
        means="`ge-backend serve --grpc-threads`",
    ),
    "nameless_regions": ReleaseAbility(  # server 50ff906d5, 21245cf59
        since=(2, 60),
        container="25.08",
        what="errors of registering shared memory do not name it",
        means="so that clients cannot find out what there is",
    ),
    "unordered_instances": ReleaseAbility(  # core b06d69b
        since=(2, 61),
        container="25.09",
        what="`preserve_ordering` keeps no order over several instances",
        means="have one instance where order matters; a fault of the host, plain Python models too",
    ),
    "bounded_ensembles": ReleaseAbility(  # core 016354d, over all requests a02b0c0
        since=(2, 63),
        container="25.11",
        what="`ensemble_scheduling.max_inflight_requests`; over all requests from 2.68 (26.04) on",
        means="a fused ensemble keeps to it, over all its instances; more instances than that are "
        "refused",
    ),
    "own_labels": ReleaseAbility(  # core f2226c0
        since=(2, 66),
        container="26.02",
        what="files of labels outside of a model's folder are refused",
        means="a fused ensemble has copies beside its own config.pbtxt",
    ),
    "asked_readiness": ReleaseAbility(  # python_backend 65529b0, core 53fc26e
        since=(2, 67),
        container="26.03",
        what="a model's readiness is asked of its stubs, from 26.04 on the server's, too",
        means="a whole server is unready while a model is loaded anew, unless it is told otherwise",
    ),
    "client_shm": ReleaseAbility(  # server 546a78766
        since=(2, 69),
        container="26.05",
        flag="allow-client-shm",
        what="clients' shared memory is off",
        means="`ge-backend serve --client-shm` allows it; before, it is always on",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What is known of one server.

    Attributes:
        flags: that its help names, without dashes.
        release: None where nothing has said it.
    """

    flags: frozenset[str]
    release: Release | None = None

    @classmethod
    def of(cls, installation: ServerInstallation) -> Abilities:
        """Ask an installation's binary, and the file that may lie beside it.

        Raises:
            ServerError: it cannot be run.
        """
        libraries = os.pathsep.join(map(str, installation.libraries))
        try:
            done = subprocess.run(
                [str(installation.binary), "--help"],
                env={**os.environ, "LD_LIBRARY_PATH": libraries},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=HELP_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ServerError(f"{installation.binary} --help cannot be run: {error}") from error
        return cls.read(done.stdout + done.stderr, installation.version)

    @classmethod
    def read(cls, text: str, version: str = "") -> Abilities:
        """Return what a help text and a version say."""
        return cls(flags=frozenset(_FLAG.findall(text)), release=release_of(version))

    def at(self, version: str) -> Abilities:
        """Return these with the release that a running server's metadata has."""
        return replace(self, release=release_of(version) or self.release)

    def has(self, name: str) -> bool:
        """Whether the server is known to have what is called so in `ABILITIES`."""
        ability = ABILITIES[name]
        if ability.flag:
            return ability.flag in self.flags
        return self.release is not None and self.release >= ability.since

    def check(self) -> None:
        """See that the release is one that is supported.

        Raises:
            ServerError: it is older, by its number or by what its help lacks.
        """
        if self.release is not None and self.release < OLDEST:
            raise ServerError(f"this is Triton {_shown(self.release)}; {_SUPPORTED}")
        if self.flags and "http-restricted-api" not in self.flags:
            raise ServerError(f"this Triton knows no --http-restricted-api; {_SUPPORTED}")

    @property
    def note(self) -> str:
        """What to say of a release that is newer than any that this has run on; else ""."""
        if self.release is None or self.release <= NEWEST:
            return ""
        return (
            f"Triton {_shown(self.release)} is newer than {_shown(NEWEST)}, the newest that this "
            "has run on; should something behave otherwise there, say so"
        )


def release_of(version: str) -> Release | None:
    """Return the release of a version such as `2.51.0`; None where it is none."""
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None


def _shown(release: Release) -> str:
    return ".".join(map(str, release))


_SUPPORTED = (
    f"supported are releases from {_shown(OLDEST)} (container 24.03) on; install a newer one"
)
