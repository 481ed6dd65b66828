"""What LoRA adapters add to a decoder's linear layers, for those tokens of a step that have one.

Layers that are computed as one product are changed as one, too: their small matrices lie side by
side on the way in, and as blocks of one matrix on the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from ge_backend.device.failures import reason, without_folders
from ge_backend.device.imports import importing
from ge_backend.errors import DeviceUnavailable, ModelError
from ge_backend.model.files.model_file import stamp_of
from ge_backend.tensors import Array
from ge_text.models.adapter import Product, StoredAdapter

__all__ = ["AdapterBank", "Change", "Changes", "StepAdapters"]


@dataclass(frozen=True, slots=True)
class Change:
    """What one adapter changes of a product.

    [R, inputs] and, scaled, [outputs, R], where R is the sum of its layers' ranks.
    """

    down: torch.Tensor
    up: torch.Tensor

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what is added to the product of rows [T, inputs]: [T, outputs]."""
        return functional.linear(functional.linear(rows, self.down), self.up)


Changes = Sequence["Change | None"]  # by the product's number


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """The adapters of one step, and whose tokens are theirs: int64 [K], None where all are."""

    parts: tuple[tuple[torch.Tensor | None, Changes], ...]

    @property
    def products(self) -> set[int]:
        """The numbers of the products that any of them changes."""
        numbered = (enumerate(changes) for _, changes in self.parts)
        return {number for changes in numbered for number, change in changes if change}

    def add(self, product: int, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Add to a product's outputs [T, outputs] what its inputs [T, inputs] are due."""
        for tokens, changes in self.parts:
            change = changes[product]
            if change is None:
                continue
            if tokens is None:
                out.add_(change.of(rows))
            else:
                out.index_add_(0, tokens, change.of(rows.index_select(0, tokens)))


class AdapterBank:
    """The adapters that are on a decoder's device, in its type. Not for several threads."""

    def __init__(
        self, products: Sequence[Product], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._products, self._dtype, self._device = products, dtype, device
        self._held: dict[str, Changes] = {}

    def load(self, adapter: StoredAdapter) -> None:
        """Read an adapter's weights.

        Raises:
            ModelError: its files cannot be read, or have changed since it was asked for.
            RuntimeError: there is no memory for it.
        """
        try:
            with importing():
                import safetensors
        except ImportError as error:
            raise DeviceUnavailable(
                "an adapter needs safetensors; pip install 'triton-ge-backend[generation]'"
            ) from error
        try:
            with safetensors.safe_open(str(adapter.weights), framework="pt") as file:
                if stamp_of((adapter.config, adapter.weights)) != adapter.stamp:
                    raise ModelError(f"adapter {adapter.name!r} was being changed; ask again")
                changes = [self._change(p, adapter, file.get_tensor) for p in self._products]
        except (OSError, safetensors.SafetensorError) as error:
            text = without_folders(reason(error), str(adapter.weights))
            raise ModelError(f"adapter {adapter.name!r} cannot be read: {text}") from error
        self._held[adapter.key] = changes

    def drop(self, key: str) -> None:
        """Free an adapter."""
        del self._held[key]

    def of_step(self, adapters: Mapping[str, Array], num_tokens: int) -> StepAdapters:
        """Return the adapters of a step of this many tokens; see `Batch.adapters`."""
        return StepAdapters(
            tuple(
                (self._placed(tokens, num_tokens), self._held[key])
                for key, tokens in adapters.items()
            )
        )

    def _placed(self, tokens: Array, num_tokens: int) -> torch.Tensor | None:
        return None if len(tokens) == num_tokens else torch.from_numpy(tokens).to(self._device)

    def _change(
        self, product: Product, adapter: StoredAdapter, read: Callable[[str], torch.Tensor]
    ) -> Change | None:
        """Return what an adapter adds to one product; a layer that it leaves gets a block of 0."""

        def placed(name: str) -> torch.Tensor:
            return read(name).to(device=self._device, dtype=self._dtype)

        changes = {layer: adapter.changes.get(layer) for layer in product.layers}
        if not any(changes.values()):
            return None
        down = [placed(change.down) for change in changes.values() if change]
        up = [
            placed(change.up) * change.scaling if change else down[0].new_zeros(outputs, 0)
            for change, outputs in zip(changes.values(), product.layers.values(), strict=True)
        ]
        return Change(torch.cat(down), torch.block_diag(*up))
