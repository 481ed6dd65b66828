"""What OpenVINO computes a precision in on this processor."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ge_backend.device.base import PLAIN
from ge_backend.engines.ov.compressed import COMPILED_WITH, compress, halve
from ge_backend.engines.ov.model import has_bf16
from ge_backend.errors import Unsupported

__all__ = ["Arithmetic", "arithmetic_of", "has_int8"]

log = logging.getLogger(__name__)

CPU_INFO = Path("/proc/cpuinfo")
# As Linux calls instructions that multiply eight bits by eight and add up in 32.
PRODUCTS_OF_8_BITS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})


# Nothing is computed in INT8, and no operators are made one.
PLAINLY: Mapping[str, str] = {
    "LP_TRANSFORMS_MODE": "OFF",
    "SNIPPETS_MODE": "DISABLE",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "EXECUTION_MODE_HINT": "ACCURACY",
}
# A file's own INT8 is computed in FP32, exactly: sums of its products would saturate.
WIDE: Mapping[str, str] = {"LP_TRANSFORMS_MODE": "OFF"}
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """How a model is compiled.

    Attributes:
        kind: of real numbers, as OpenVINO calls it: `f32` or `bf16`.
        compressed: whether products have weights of eight bits.
        plain: whether all is computed as the file says, without what makes it fast.
    """

    kind: str = "f32"
    compressed: bool = False
    plain: bool = False

    @property
    def options(self) -> Mapping[str, str]:
        """What else it is compiled with."""
        if self.plain or self.compressed:
            return PLAINLY if self.plain else COMPILED_WITH
        return WIDE if _saturates() else NOTHING

    def instead_of(self, asked: str) -> str:
        """Return the precision that this is in place of one that was asked for; "": it is that."""
        own = "int8" if self.compressed else "bf16" if self.kind == "bf16" else "origin"
        return own if asked in ("bf16", "int8") and own != asked else ""

    def applied(self, model: Any, path: str) -> Arithmetic:
        """Round a model's weights, in place, as far as is asked for; return what holds then.

        A model without weights to compress, as one that is quantised already, is computed as it is.

        Raises:
            Unsupported: its weights are not finite.
        """
        if not self.compressed:
            if self.kind == "bf16":
                halve(model)
            return self
        try:
            found = compress(model)
        except Unsupported as error:
            raise Unsupported(f"{path}: {error}") from error
        if not found.matrices:
            log.warning(
                "%s: precision 'int8' changes nothing: no product has weights of real numbers, as "
                "in a file that is quantised already; it is computed as it is",
                path,
            )
            return Arithmetic()
        log.info("%s: %d weights of %d products have 8 bits", path, found.numbers, found.matrices)
        return self


def arithmetic_of(precision: str, path: str) -> Arithmetic:
    """Return what a graph is computed in; `path` is its file, for the log.

    Where the processor lacks what a precision needs, that is the next one: `bf16`, then FP32.

    Args:
        precision: `origin`, `fp32`, `bf16`, `int8` or `PLAIN`.
        path: of the graph, for the log.
    """
    if precision in ("origin", "fp32", PLAIN):
        return Arithmetic(plain=precision == PLAIN)
    rest = Arithmetic(kind="bf16" if has_bf16() else "f32")
    if precision == "int8":
        if has_int8():
            return replace(rest, compressed=True)
        log.info("%s: this processor has no products of 8 bits, so it computes as in bf16", path)
    if rest.kind == "f32":
        log.info("%s: this processor has no BF16, so it is computed in FP32", path)
    return rest


def has_int8() -> bool:
    """Whether this processor multiplies numbers of eight bits.

    Without that OpenVINO makes weights wide for each product, which is slower than FP32.
    """
    return bool(PRODUCTS_OF_8_BITS & _instructions())


def _saturates() -> bool:
    """Whether sums of such products end at 16 bits, as on an x86 without them."""
    return bool(_instructions()) and not has_int8()


def _instructions() -> frozenset[str]:
    """Return what the system says of an x86; nothing of another processor."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.split())
