"""What the layers of one of transformers' decoders ask of attention, found out by running it once.

A probe takes the place of the attention, notes what every layer hands it, and which mask the model
made for that layer. What a mask hides is asked of the mask itself, far behind the few tokens of the
probe, so that a window of thousands is seen and anything but a window is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ge_backend.errors import Unsupported
from ge_text.torch.attention import Attend
from ge_text.torch.cache import KeyValueShape

__all__ = ["Probe", "ProbedLayer", "probe_attention", "probe_mask"]

# Where masks are asked: behind any window, at no round number.
FAR = 10_000_019
# What attention is given and heeds, or what has no say in its result.
KNOWN = frozenset(
    (
        *("scaling", "softcap", "sliding_window"),
        *("cache_position", "dropout", "is_causal", "position_embeddings", "position_ids"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedLayer:
    """One layer: the module that attends, how, and what it keeps."""

    module: torch.nn.Module
    attend: Attend
    shape: KeyValueShape


class Probe:
    """What one run of a model finds.

    Attributes:
        layers: in the order in which they attended.
    """

    def __init__(self) -> None:
        self.layers: list[ProbedLayer] = []

    @contextlib.contextmanager
    def attached(self, model: torch.nn.Module) -> Iterator[None]:
        """Be at every module of a model as `ge_probe`, where the attention function looks."""
        for module in model.modules():
            module.ge_probe = self
        try:
            yield
        finally:
            for module in model.modules():
                vars(module).pop("ge_probe", None)  # a run may have put other modules in place

    def note(
        self,
        module: torch.nn.Module,
        shapes: tuple[torch.Size, torch.Size, torch.Size],
        mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> None:
        """Add a layer, by the shapes of its queries, keys and values [1, heads, T, D].

        Raises:
            Unsupported: the layer asks for something that paged attention does not do.
        """
        where = f"layer {len(self.layers)} ({type(module).__name__})"
        if any(layer.module is module for layer in self.layers):
            raise Unsupported(f"{where} attends twice in one run, with the same weights")
        asked = getattr(mask, "ge_asked", None)
        if asked is None:
            raise Unsupported(f"{where} takes no mask that transformers' mask interface made")
        window = _window(where, asked)
        # Where it is not given the mask decides, as in transformers' eager attention.
        if (options.get("sliding_window", window) or 0) != window:
            raise Unsupported(f"{where} has another window than its mask, which shows {window}")
        idle = (None, False)
        unknown = sorted(
            name
            for name, value in options.items()
            if name not in KNOWN and not any(value is item for item in idle)
        )
        if unknown:
            raise Unsupported(f"{where} asks attention for {', '.join(unknown)}")
        query, key, value = shapes
        scale = options.get("scaling")
        self.layers.append(
            ProbedLayer(
                module=module,
                attend=Attend(
                    scale=float(query[-1] ** -0.5 if scale is None else scale),
                    window=window,
                    softcap=float(options.get("softcap") or 0.0),
                ),
                shape=KeyValueShape(heads=key[1], key_dim=key[-1], value_dim=value[-1]),
            )
        )


def probe_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Note a layer in the model's `Probe`; the result is zeros of the right shape."""
    module.ge_probe.note(module, (query.shape, key.shape, value.shape), attention_mask, options)
    rows, heads, count, _ = query.shape
    return query.new_zeros(rows, count, heads, value.shape[-1]), None


def probe_mask(**asked: Any) -> torch.Tensor:
    """Return a stand-in for the mask, which remembers what was asked for."""
    marker = torch.zeros(1, 1, asked["q_length"], asked["kv_length"], dtype=torch.bool)
    marker.ge_asked = asked
    return marker


def _window(where: str, asked: Mapping[str, Any]) -> int:
    """Return how many tokens a mask lets a token see; 0 is all before it.

    Raises:
        Unsupported: it hides or shows anything else.
    """
    sees = _seen(asked["mask_function"])
    size = int(asked.get("local_size") or 0)
    for last in (FAR, FAR + 1, FAR + size // 2 + 1, FAR + size):
        causal = sees(last, last) and not sees(last, last + 1)
        first = last - size + 1 if size else 0
        behind = sees(last, first) and not (size and sees(last, first - 1))
        if not causal or not behind:
            raise Unsupported(
                f"{where} has a mask that is neither causal nor a causal window of {size}"
            )
    return size


def _seen(function: Callable[..., Any]) -> Callable[[int, int], bool]:
    def sees(query: int, key: int) -> bool:
        numbers: Sequence[torch.Tensor] = [torch.tensor(item) for item in (0, 0, query, key)]
        return bool(function(*numbers))

    return sees
