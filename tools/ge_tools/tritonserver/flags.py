"""What a server's arguments give a flag."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

__all__ = ["values_of"]


def values_of(arguments: Sequence[str], flag: str, shortest: str) -> list[str]:
    """Return each value of a flag, as one word or as two, in the order of the arguments.

    The flag may be shortened, as getopt_long(3) takes it, to no less than the length of `shortest`,
    where it becomes another one's, too.
    """
    found = []
    for argument, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = argument.partition("=")
        if flag.startswith(name) and len(name) >= len(shortest):
            found.append(value if equals else following)
    return found
