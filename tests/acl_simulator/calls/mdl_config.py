"""`acl.mdl`: loading and running by configuration, and dumps, which do nothing here."""

import ctypes
from dataclasses import dataclass, field

from acl_simulator.codes import Code, ConfigAttribute, LoadType
from acl_simulator.machine.loaded import LoadedModel
from acl_simulator.machine.loader import Given, Loader
from acl_simulator.machine.machine import Machine
from acl_simulator.om_file import Om
from acl_simulator.refusals import Refusal

__all__ = ["ConfigCalls"]

A = ConfigAttribute
# What each way of loading cannot do without.
REQUIRED = {
    LoadType.FROM_FILE: (A.PATH,),
    LoadType.FROM_FILE_WITH_MEM: (A.PATH,),
    LoadType.FROM_MEM: (A.MEM_ADDRESS, A.MEM_SIZE),
    LoadType.FROM_MEM_WITH_MEM: (A.MEM_ADDRESS, A.MEM_SIZE),
}
LEAST = 7  # priority
WITH_MEM = LoadType.FROM_FILE_WITH_MEM, LoadType.FROM_MEM_WITH_MEM


@dataclass(slots=True, eq=False)
class Config:
    """Options by attribute."""

    options: dict[int, int | str] = field(default_factory=dict)


class ConfigCalls:
    """One machine's configuration calls."""

    def __init__(self, machine: Machine, loader: Loader) -> None:
        self._machine = machine
        self._loader = loader

    def create_config_handle(self) -> int:
        return self._machine.handles.issue("load config", Config())

    def destroy_config_handle(self, handle: int) -> None:
        self._machine.handles.release("load config", handle)

    def set_config_opt(self, handle: int, attribute: int, value: object) -> None:
        config: Config = self._machine.handles.get("load config", handle)
        expected = str if attribute == A.PATH else int
        if not isinstance(value, expected):
            raise TypeError(
                f"acl.mdl.set_config_opt args parse failed: attribute {attribute} takes "
                f"{expected.__name__}, got {type(value).__name__}"
            )
        if attribute == A.WORKSPACE_MEM_OPTIMIZE and value not in (0, 1):
            raise Refusal(Code.INVALID_PARAM, f"WORKSPACE_MEM_OPTIMIZE {value} is not 0 or 1")
        if attribute == A.WEIGHT_PATH:
            value = ctypes.string_at(value).decode()
        config.options[attribute] = value

    def load_with_config(self, handle: int) -> int:
        options = self._machine.handles.get("load config", handle).options
        kind = options.get(A.LOAD_TYPE)
        if kind not in REQUIRED:
            raise Refusal(Code.INVALID_PARAM, f"LOAD_TYPE {kind}")
        missing = [attribute.name for attribute in REQUIRED[kind] if attribute not in options]
        if missing:
            raise Refusal(Code.INVALID_PARAM, f"{LoadType(kind).name} without {missing}")
        if kind == LoadType.FROM_FILE and A.WEIGHT_PATH in options:
            raise Refusal(Code.INVALID_PARAM, "WEIGHT_PATH with LOAD_TYPE FROM_FILE")
        if not 0 <= options.get(A.PRIORITY, 0) <= LEAST:
            raise Refusal(Code.INVALID_PARAM, f"PRIORITY {options[A.PRIORITY]} is not 0 to {LEAST}")
        model = self._load(kind, options)
        model.priority = options.get(A.PRIORITY, 0)
        return model.number

    def _load(self, kind: int, options: dict[int, int | str]) -> LoadedModel:
        om = self._read(kind, options)
        if kind not in WITH_MEM:
            return self._loader.load(om)
        work = Given(options.get(A.WORKSPACE_ADDRESS, 0), options.get(A.WORKSPACE_SIZE, 0))
        weights = Given(options.get(A.WEIGHT_ADDRESS, 0), options.get(A.WEIGHT_SIZE, 0))
        return self._loader.load(om, work, weights)

    def create_exec_config_handle(self) -> int:
        return self._machine.handles.issue("exec config", Config())

    def set_exec_config_opt(self, handle: int, attribute: int, value: int) -> None:
        self._machine.handles.get("exec config", handle).options[attribute] = value

    def destroy_exec_config_handle(self, handle: int) -> None:
        self._machine.handles.release("exec config", handle)

    def init_dump(self) -> None:
        """Do nothing."""

    def set_dump(self, path: str = "") -> None:
        """Do nothing."""

    def finalize_dump(self) -> None:
        """Do nothing."""

    def _read(self, kind: int, options: dict[int, int | str]) -> Om:
        if A.PATH in REQUIRED[kind]:
            return self._loader.read_path(options[A.PATH])
        return self._loader.read_bytes(options[A.MEM_ADDRESS], options[A.MEM_SIZE])
