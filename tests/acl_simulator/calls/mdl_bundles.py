"""`acl.mdl`: bundles, several models in one file."""

from pathlib import Path

from acl_simulator.codes import Code
from acl_simulator.machine.loader import Loader
from acl_simulator.machine.machine import Machine
from acl_simulator.om_file import read_bundle
from acl_simulator.refusals import Refusal

__all__ = ["BundleCalls"]


class BundleCalls:
    """One machine's bundle calls."""

    def __init__(self, machine: Machine, loader: Loader) -> None:
        self._machine = machine
        self._loader = loader
        self._bundles: dict[int, list[int]] = {}
        self._next = 1

    def bundle_load_from_file(self, path: str) -> int:
        try:
            return self._load(Path(path).read_bytes())
        except OSError as error:
            raise Refusal(Code.GE_MODEL_PATH, f"bundle {path!r}: {error}") from None

    def bundle_load_from_mem(self, address: int, size: int) -> int:
        return self._load(self._loader.host_bytes(address, size))

    def bundle_get_model_num(self, bundle: int) -> int:
        return len(self._numbers(bundle))

    def bundle_get_model_id(self, bundle: int, at: int) -> int:
        numbers = self._numbers(bundle)
        if at >= len(numbers):
            raise Refusal(Code.INVALID_PARAM, f"model {at} of {len(numbers)}")
        return numbers[at]

    def bundle_unload(self, bundle: int) -> None:
        for number in self._numbers(bundle):
            self._loader.unload(number)
        del self._bundles[bundle]

    def _load(self, data: bytes) -> int:
        numbers = []
        for om in read_bundle(data):
            model = self._loader.load(om)
            model.bundle = self._next
            numbers.append(model.number)
        self._bundles[self._next] = numbers
        self._next += 1
        return self._next - 1

    def _numbers(self, bundle: int) -> list[int]:
        if bundle not in self._bundles:
            raise Refusal(Code.INVALID_MODEL_ID, f"bundle id {bundle} is unknown")
        return self._bundles[bundle]
