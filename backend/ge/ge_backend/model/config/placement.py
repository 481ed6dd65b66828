"""Which devices a model runs on: what its configuration says, and what the machine says.

`device` names a kind or one device, `device_ids` lists several of that kind. A model names its own
first; `GE_DEVICE` is for those that name none, and may send the devices of one that only lists ids
elsewhere: a repository made for cards 4 and 5 then runs on a CPU, or on the one GPU of a laptop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ge_backend.errors import ConfigError

__all__ = ["KINDS", "Placement", "is_device_number", "place"]

# Of devices, those that `device.base.open_device` opens.
KINDS = ("cpu", "cuda", "npu", "null")

# `device_ids` alone is a key of the C++ GE backend, whose devices are NPUs.
KIND_OF_IDS = "npu"
DEFAULT = "cpu"
# Their first one is called by the kind alone.
UNNUMBERED = ("cpu", "null")
MAX_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a model runs.

    Attributes:
        devices: their names, in the order of the configuration; two names are two devices.
        notes: what was said and has no effect, for the log.
    """

    devices: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`cpu`, `npu`, …: all devices of a model are of one kind."""
        return self.devices[0].partition(":")[0]

    def of_instance(self, number: int) -> Placement:
        """Return the one device for a model instance whose sequences stay on a device.

        The host keeps a sequence with one instance, so instances are spread instead of batches, by
        their number among all of the model (`instance_number`).
        """
        return replace(self, devices=(self.devices[number % len(self.devices)],))


def is_device_number(text: str) -> bool:
    """Whether a device may have this number; Python refuses to read one of thousands of digits."""
    return text.isdecimal() and len(text) <= MAX_DIGITS


def place(*, device: str, device_ids: str, forced: str) -> Placement:
    """Return where a model runs, by two of its parameters and `GE_DEVICE`; "" where not given.

    Raises:
        ConfigError: a value cannot be used, or the two parameters contradict each other.
    """
    ids = _ids(device_ids)
    name = device or forced or (KIND_OF_IDS if ids else DEFAULT)
    kind, _, index = name.partition(":")
    if index and not is_device_number(index):
        origin = "parameter 'device'" if device else "GE_DEVICE"
        raise ConfigError(
            f"{origin} is {name!r:.80}; expected a kind or one device: npu, cuda:1, cpu"
        )
    if ids and index and device:
        raise ConfigError(
            f"parameters 'device' ({device!r}) and 'device_ids' ({device_ids!r}) both say which "
            f"device; give the kind alone ({kind!r}), or remove device_ids"
        )
    one = (_name(kind, int(index or 0)),)
    if ids and (index or kind == DEFAULT):
        says = "parameter 'device'" if device else "GE_DEVICE"
        note = f"device_ids {device_ids!r} have no effect: {says} is {name!r}"
        return Placement(devices=one, notes=(note,))
    return Placement(devices=tuple(_name(kind, number) for number in ids) or one)


def _name(kind: str, index: int) -> str:
    """Return the one name of a device, so that equal devices have equal names."""
    return kind if kind in UNNUMBERED and not index else f"{kind}:{index}"


def _ids(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(map(is_device_number, parts)) or len(set(map(int, parts))) < len(parts):
        raise ConfigError(
            f"parameter 'device_ids' is {text!r:.80}; expected numbers such as '0,1', each once"
        )
    return tuple(map(int, parts))
