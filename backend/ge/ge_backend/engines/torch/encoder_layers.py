"""An encoder's layers as torch computes them: transformers' modules, weights packed for the CPU."""

from __future__ import annotations

import torch

from ge_backend.device.imports import importing
from ge_backend.engines.torch.encoder import Layers, PackedEncoder
from ge_backend.engines.torch.linear import Linear, linear
from ge_backend.engines.torch.packed_rows import CurrentRows, PackedRows, packed_attention
from ge_backend.engines.torch.pretrained import UNUSED
from ge_backend.engines.torch.slow_half import warn_of_slow_half
from ge_backend.tensors import Array

__all__ = ["TorchLayers"]

PACKED = "ge_packed"


class TorchLayers:
    """The layers of one encoder; its modules are changed, and of no use to another engine."""

    def __init__(self, encoder: PackedEncoder) -> None:
        with importing():
            from transformers import AttentionInterface

        warn_of_slow_half(encoder.base.name_or_path, encoder.dtype)
        self._encoder, self._rows = encoder, CurrentRows()
        # No mask is registered for ours: none is made then.
        AttentionInterface.register(PACKED, packed_attention)
        encoder.base.set_attn_implementation(PACKED)
        _pack_weights(encoder.base)
        for module in encoder.base.modules():
            module.ge_rows = self._rows

    def layers(self, threads: int, at_once: int) -> Layers:
        """See `EncoderEngine`."""
        del at_once  # a number of threads is the calling thread's own

        def run(packed: PackedRows) -> Array:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            self._rows.spans, self._rows.columns = packed.spans, packed.columns
            ids, positions = map(torch.from_numpy, (packed.ids, packed.positions))
            types = None if packed.types is None else torch.from_numpy(packed.types)
            with torch.inference_mode():
                found = self._encoder.hidden(ids, positions, types)
                hidden: Array = found.float().numpy()
            return hidden

        return run


class _PackedLinear(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self._layer = layer

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self._layer(rows)


def _pack_weights(base: torch.nn.Module) -> None:
    """Give the linear layers weights in the order in which the processor reads them."""
    for parent in list(base.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and name != UNUSED:
                bias = None if child.bias is None else child.bias.detach()
                setattr(parent, name, _PackedLinear(linear(child.weight.detach(), bias)))
