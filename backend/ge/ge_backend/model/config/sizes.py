"""Numbers of bytes as people write them: `12GiB`, `512 MiB`, and one per device."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ge_backend.errors import ConfigError
from ge_backend.model.config.placement import KINDS, is_device_number

__all__ = ["format_bytes", "parse_bytes", "parse_device_bytes", "size_of_device", "unit_of"]

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(?P<number>\d{1,18}(\.\d+)?)\s*(?P<unit>[A-Za-z]*)")


def parse_bytes(text: str, name: str) -> int:
    """Return the number of bytes that a text such as `12GiB` or `1000` states.

    Units are B, KiB, MiB, GiB and TiB; none is bytes. `name`, of the setting, is for the error.

    Raises:
        ConfigError: it is not such a text.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or match["unit"] not in UNITS:
        raise ConfigError(
            f"{name}: {text.strip()!r:.80} is not a size; expected bytes or a number with one of "
            f"{', '.join(filter(None, UNITS))}, such as 12GiB"
        )
    return int(float(match["number"]) * UNITS[match["unit"]])


def parse_device_bytes(text: str, name: str) -> dict[str, int]:
    """Return the sizes that `npu:0=12GiB,cuda=8GiB,2GiB` states, by device.

    An entry without a device is for all that are not named; its key is "". Of a device named
    without a number (`cuda`) it holds for each of them.

    Raises:
        ConfigError: an entry is not a size, or a device is named twice or cannot be.
    """
    sizes: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        device, size = entry.split("=", 1) if "=" in entry else ("", entry)
        device = device.strip() and _device(device.strip(), name)
        if device in sizes or entry.startswith("="):
            what = f"{device!r} is named twice" if device in sizes else "'=' follows no device"
            raise ConfigError(f"{name}: {text!r}: {what}; expected npu:0=12GiB,cuda:0=8GiB,2GiB")
        sizes[device] = parse_bytes(size, name)
    return sizes


def _device(text: str, name: str) -> str:
    """Return the one spelling of a device: of `npu:01` it is `npu:1`, a kind stays as it is."""
    kind, colon, number = text.partition(":")
    if kind not in KINDS or (colon and not is_device_number(number)):
        raise ConfigError(
            f"{name}: {text!r:.80} is no device; expected one of {', '.join(KINDS)}, or one with "
            "its number, such as cuda:0"
        )
    return f"{kind}:{int(number)}" if colon else kind


def size_of_device(sizes: Mapping[str, int], device: str) -> int:
    """Return what holds for a device: its own entry, its kind's, that for all, or 0."""
    kind, colon, _ = device.partition(":")
    own = device if colon else f"{device}:0"
    return next((sizes[key] for key in (own, kind, "") if key in sizes), 0)


def format_bytes(nbytes: int) -> str:
    """Return the number in the largest unit that it reaches, to four digits: `7.938 GiB`."""
    unit, size = unit_of(nbytes)
    return f"{nbytes / size:.4g} {unit}"


def unit_of(nbytes: float) -> tuple[str, int]:
    """Return the largest unit that a number of bytes reaches, and the bytes in it."""
    return next((u, size) for u, size in reversed(UNITS.items()) if nbytes >= size or size == 1)
