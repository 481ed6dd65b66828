"""The two ways in which the simulator says no: an error code, or a misuse."""

from typing import NoReturn

from acl_simulator.codes import Code

__all__ = ["Misuse", "Misuses", "Refusal"]

UNCHANGED = object()


class Refusal(Exception):
    """A call answers with an error code, as the real library does.

    Attributes:
        code: what `ret` becomes.
        value: what comes before `ret`, where it is not the usual one of a failed call.
    """

    def __init__(self, code: Code | int, message: str, value: object = UNCHANGED) -> None:
        super().__init__(message)
        self.code = int(code)
        self.value = value


class Misuse(AssertionError):
    """What the real library answers with a crash, or with silently wrong data."""


class Misuses(list[Misuse]):
    """All misuses so far: they count even where the caller swallowed the exception."""

    def note(self, text: str) -> Misuse:
        """Record a misuse and return it."""
        misuse = Misuse(text)
        self.append(misuse)
        return misuse

    def refuse(self, text: str) -> NoReturn:
        """Record a misuse and raise it."""
        raise self.note(text)
