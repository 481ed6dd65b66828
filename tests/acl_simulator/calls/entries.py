"""What a caller sees of a call: parsing, counting, faults, and `ret` in its place."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

from acl_simulator.arguments import parse
from acl_simulator.codes import Code
from acl_simulator.facts import CALLS, Call
from acl_simulator.machine.machine import Machine
from acl_simulator.refusals import UNCHANGED, Misuses, Refusal

__all__ = ["Entry", "UnsetList", "entries"]

NO_INIT = (
    "init",
    "finalize",
    "get_",
    "app_log",
    "data_type_size",
    "create_",
    "destroy_",
    "update_",
    "util.",
)


class UnsetList(list):
    """The list of a failed call: its slots are NULL, and touching one crashes the interpreter."""

    def __init__(self, misuses: Misuses) -> None:
        super().__init__()
        self._misuses = misuses

    def _touched(self, *_: object) -> NoReturn:
        self._misuses.refuse("the list of a failed call is touched: its slots are NULL")

    __getitem__ = __iter__ = __len__ = __bool__ = __eq__ = __contains__ = __repr__ = _touched
    __hash__ = None


class Entry:
    """One call, as it stands in the module."""

    def __init__(self, machine: Machine, name: str, act: Callable[..., Any]) -> None:
        self.name = name
        self.call: Call = CALLS[name]
        self._machine = machine
        self._act = act

    def __repr__(self) -> str:
        return f"<simulated function acl.{self.name}>"

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        if keywords:
            raise TypeError(f"acl.{self.name} args parse failed: takes no keyword arguments")
        values = parse(self.name, self.call, arguments)
        machine = self._machine
        with machine.turn:
            machine.calls[self.name] += 1
            machine.turn.notify_all()  # for tests that wait for a call
            try:
                self._refuse()
                return self._success(self._act(*values))
            except Refusal as refusal:
                if self.name.startswith("rt."):
                    machine.note_failure(refusal.code)
                machine.set_message(f"E{refusal.code}: acl.{self.name}: {refusal}")
                return self._failure(refusal, arguments)
            finally:
                machine.after_call(self.name)

    def _refuse(self) -> None:
        machine = self._machine
        if not machine.initialised and not self.name.startswith(NO_INIT):
            raise Refusal(Code.UNINITIALISED, "acl.init was not called")
        fault = machine.faults.take(self.name)
        if fault is not None:
            raise Refusal(fault.code, fault.message or "a fault that the test asked for")

    def _success(self, result: Any) -> Any:
        kinds = self.call.returns
        if "ret" not in kinds:
            return result
        values = () if len(kinds) == 1 else result if len(kinds) > 2 else (result,)
        return (*values, 0) if values else 0

    def _failure(self, refusal: Refusal, arguments: tuple[object, ...]) -> Any:
        values = [self._failed_value(kind, refusal, arguments) for kind in self.call.returns]
        if not values:
            return None
        return values[0] if len(values) == 1 else tuple(values)

    def _failed_value(self, kind: str, refusal: Refusal, arguments: tuple[object, ...]) -> Any:
        if kind == "ret":
            return refusal.code
        if refusal.value is not UNCHANGED:
            return refusal.value
        if kind == "echo":
            return arguments[0]
        if kind == "dicts":
            return UnsetList(self._machine.misuses)
        return {"dict": {}, "str": "", "text": None, "bytes": b"", "float": 0.0}.get(kind, 0)


def entries(machine: Machine, prefix: str, families: list[Any], without: set[str]) -> Any:
    """Return a namespace with the calls of one prefix, each done by whichever family has it."""
    namespace = SimpleNamespace()
    for name in CALLS:
        short = name.removeprefix(prefix)
        if name.startswith(prefix) and "." not in short and name not in without:
            family = next(family for family in families if hasattr(family, short))
            setattr(namespace, short, Entry(machine, name, getattr(family, short)))
    return namespace
