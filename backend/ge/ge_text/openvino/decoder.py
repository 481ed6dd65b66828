"""A decoder whose whole step is one run of OpenVINO, on the paged cache that all decoders have.

Nothing of it is Python between two layers, and OpenVINO shares work out among its threads in small
pieces, so that a core that another process needs for a moment does not hold up the other ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino
import torch

from ge_backend.engines.ov.compressed import compress
from ge_backend.engines.ov.model import ENGINE_ERRORS, cause, compile_for_cpu, infer
from ge_backend.engines.ov.precision import PRECISIONS
from ge_backend.engines.ov.signal_stack import signal_stack_kept
from ge_backend.errors import Unsupported
from ge_backend.tensors import Array
from ge_text.models.batch import Group
from ge_text.openvino.adapters import AdapterInputs
from ge_text.openvino.graph import BLOCK_SIZE, TYPES, llama_graph, rotation_names, tensor_of
from ge_text.openvino.weights_file import WeightsFile
from ge_text.torch.cache import KeyValueShape, PagedCache
from ge_text.torch.llama_weights import LlamaWeights
from ge_text.torch.step import StepTensors

__all__ = ["OpenVinoDecoder"]

# Of activations that meet weights of eight bits. A text is written token by token from what was
# computed before, so it gets the finer one; encoders take 64.
GROUP_SIZE = "32"
# A head's u8 of a token stand behind their scale and what zero is, two FP32. By itself OpenVINO has
# the keys of a block's tokens share these, so that each that comes changes the others, a draft that
# was wrong, too. Seen of 2026.4, which does not promise the second option.
EIGHT_BITS = {"KV_CACHE_PRECISION": "u8", "KEY_CACHE_QUANT_MODE": "BY_TOKEN"}


class OpenVinoDecoder:
    """See the module; a `Decoder`, on a CPU, for blocks of 32 tokens and steps without padding.

    A step in which a text has an adapter is another decoder's, on the same cache: its graph takes
    adapters, which would hold up steps that have none.

    Args:
        weights: in `dtype`, or in BF16 beside FP32; the graph copies them, onto a file if it can.
        dtype: of the arithmetic, and of keys and values unless those are to have eight bits.
        threads: of one step.
        adapting: returns the decoder of steps with adapters; called when the first one comes. None:
            this is that one, and takes no others.
        compressed: products have weights of eight bits, scores over the vocabulary, too.
        narrow_cache: keys and values have eight bits.

    Attributes:
        compressed: how many weights have eight bits; 0: they stay as they were read.
        cache_dtype: what keys and values are kept in.

    Raises:
        ModelError: a weight is missing or has another shape than the configuration says.
        Unsupported: OpenVINO cannot compile it, or weights that are to have eight bits are not
            finite; says why.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        weights: LlamaWeights,
        *,
        dtype: torch.dtype,
        threads: int,
        adapting: Callable[[], OpenVinoDecoder] | None = None,
        compressed: bool = False,
        narrow_cache: bool = False,
    ) -> None:
        self.dtype = dtype
        self._adapting = adapting
        self._for_adapters: OpenVinoDecoder | None = None
        self.products = weights.products()
        # The two halves of a head turn alike.
        self._frequencies = [np.tile(each.numpy(), 2) for each in weights.frequencies]
        self._adapters = AdapterInputs(self.products, dtype)
        graph = llama_graph(weights, dtype, adapted=adapting is None)
        self.compressed = compress(graph).numbers if compressed else 0
        self._weights = WeightsFile(graph)
        kind = PRECISIONS[dtype]
        options = EIGHT_BITS if narrow_cache else {"KV_CACHE_PRECISION": kind}
        if self.compressed:
            options = {**options, "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP_SIZE}
        self._compiled = _compiled(graph, kind, threads, options)
        ports = {port.any_name: port for port in self._compiled.inputs}
        self._kinds = {name: port.element_type.to_dtype() for name, port in ports.items()}
        key, value = (ports[f"{part}_cache.0"] for part in ("key", "value"))
        shape = KeyValueShape(
            heads=weights.key_heads, key_dim=_last_size(key), value_dim=_last_size(value)
        )
        self.shapes = (shape,) * weights.num_layers
        self.cache_dtype = next(of for of, name in TYPES.items() if name == key.element_type)
        self._request = self._compiled.create_infer_request()
        self._places: dict[str, Array] = {}
        self._bound: PagedCache | None = None

    def logits(self, step: StepTensors) -> torch.Tensor:
        """See `Decoder`. The scores are FP32, and the graph's own until the next step."""
        if step.adapters is not None and self._adapting is not None:
            if self._for_adapters is None:
                self._for_adapters = self._adapting()
            return self._for_adapters.logits(step)
        first = step.cache is not self._bound
        if first:
            self._bind(step.cache)
        inputs = {
            "ids": step.ids.numpy(),
            **self._rotation(step.positions.numpy()),
            "sampled": step.sampled.numpy(),
            **_sequences(step.groups),
        }
        try:
            for name, array in inputs.items():
                self._write(name, array)
            if step.adapters is not None:
                for name, tensor in self._adapters.of(step.adapters, len(step.ids)):
                    self._request.set_tensor(name, tensor)
            infer(self._request)
        except RuntimeError as error:
            raise RuntimeError(cause(error)) from error  # its first lines are OpenVINO's own files
        if first:
            self._weights.drop_pages()
        return torch.from_numpy(self._request.get_output_tensor(0).data)

    def close(self) -> None:
        """See `Decoder`."""
        if self._for_adapters is not None:
            self._for_adapters.close()
        with signal_stack_kept():
            self._bound = None
            del self._request, self._compiled, self._weights

    def _bind(self, cache: PagedCache) -> None:
        """Let the graph work on a cache where it is, from now on."""
        for part, layers in (("key", cache.keys), ("value", cache.values)):
            for index, blocks in enumerate(layers):
                self._request.set_tensor(f"{part}_cache.{index}", tensor_of(blocks))
        self._bound = cache

    def _write(self, name: str, array: Array) -> None:
        """Write an input to where the graph reads it, or to a new place if its shape is another.

        Making a tensor known takes some 40 us, and most steps have the shapes of the one before.
        """
        place = self._places.get(name)
        if place is None or place.shape != array.shape:
            place = np.empty(array.shape, self._kinds[name])
            self._request.set_tensor(name, openvino.Tensor(place, shared_memory=True))
            self._places[name] = place
        place[...] = array

    def _rotation(self, positions: Array) -> dict[str, Array]:
        """Return cosines and sines float32 [T, 1, 1, D]."""
        places = positions[:, None, None, None].astype(np.float32)
        found: dict[str, Array] = {}
        for index, frequencies in enumerate(self._frequencies):
            angles = places * frequencies
            names = rotation_names(index)
            found.update(zip(names, (np.cos(angles), np.sin(angles)), strict=True))
        return found


def _sequences(groups: Sequence[Group]) -> dict[str, Array]:
    """Return which of the tokens are whose, and where their keys are."""
    counts = np.repeat([group.query for group in groups], [group.rows for group in groups])
    lengths = np.maximum(np.concatenate([group.lengths for group in groups]), counts)
    held = -(-lengths // BLOCK_SIZE)
    tables, first = [], 0
    for group in groups:
        used = np.arange(group.tables.shape[1]) < held[first : first + group.rows, None]
        tables.append(group.tables[used])
        first += group.rows
    return {
        "past_lens": lengths - counts,
        "subsequence_begins": np.concatenate(([0], counts.cumsum())),
        "block_indices": np.concatenate(tables),
        "block_indices_begins": np.concatenate(([0], held.cumsum())),
        "max_context_len": lengths.max(),
    }


def _last_size(port: Any) -> int:
    return int(port.partial_shape[3].get_length())


def _compiled(graph: Any, precision: str, threads: int, options: Mapping[str, str]) -> Any:
    try:
        return compile_for_cpu(
            graph,
            precision=precision,
            threads=threads,
            streams=1,
            **options,
        )
    except ENGINE_ERRORS as error:
        raise Unsupported(f"OpenVINO cannot compile it: {cause(error)}") from error
