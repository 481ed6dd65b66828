"""Any causal decoder that transformers runs through its attention interface, on a paged cache.

The modules are transformers' own and are not changed: a registered attention function finds, at
the module that calls it, which layer that is and the step that is being run. Each text's tokens
stand behind one another in one row, so linear layers see no padding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ge_backend.device.imports import importing
from ge_backend.engines.torch.pretrained import load_pretrained, refusing
from ge_backend.errors import DeviceUnavailable, Unsupported
from ge_backend.model.files.checkpoint import Checkpoint
from ge_text.models.adapter import Product
from ge_text.models.batch import Batch, Group
from ge_text.torch.attention import Attend
from ge_text.torch.cache import PagedCache
from ge_text.torch.probe import (
    Probe,
    ProbedLayer,
    probe_attention,
    probe_mask,
)
from ge_text.torch.step import StepTensors, stage

__all__ = ["TransformersDecoder"]

PAGED, PROBE = "ge_paged", "ge_probe"
# The run at load that is compared with the model's own attention: two texts, one in two chunks.
CHECK_LENGTHS = 9, 4
CHECK_BLOCK = 2
# Largest difference that rounding makes, as a share of the largest score.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


class _Current:
    """The step that is being run; every layer of the model looks here."""

    step: StepTensors | None = None


@dataclass(frozen=True, slots=True)
class _Layer:
    """What the attention function finds at a module."""

    index: int
    attend: Attend
    current: _Current


class TransformersDecoder:
    """See the module; a `Decoder`.

    Raises:
        Unsupported: the architecture does something that a paged cache cannot; says what.
        ModelError: the weights are not those that the architecture has.
    """

    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._current = _Current()
        self._model = _load(checkpoint, dtype).to(device)
        self._linears, self.products = _linears(self._model)
        with torch.inference_mode(), _refusing(checkpoint):
            layers = self._probed(checkpoint)
            self.shapes = tuple(layer.shape for layer in layers)
            for index, layer in enumerate(layers):
                layer.module.ge_layer = _Layer(index, layer.attend, self._current)
            self._check(checkpoint.vocabulary)

    def logits(self, step: StepTensors) -> torch.Tensor:
        """See `Decoder`."""
        self._current.step = step
        try:
            with self._adapting(step):
                found = self._model(
                    input_ids=step.ids.unsqueeze(0),
                    position_ids=step.positions.unsqueeze(0),
                    use_cache=False,
                    logits_to_keep=step.sampled,
                )
        finally:
            self._current.step = None
        logits: torch.Tensor = found.logits[0]
        return logits

    def close(self) -> None:
        """See `Decoder`."""
        del self._model, self._linears

    @contextlib.contextmanager
    def _adapting(self, step: StepTensors) -> Iterator[None]:
        """Let the layers that this step's adapters change say what they compute, for one run."""
        with contextlib.ExitStack() as hooks:
            for number in step.adapters.products if step.adapters else ():
                hook = partial(_adapt, step, number)
                hooks.callback(self._linears[number].register_forward_hook(hook).remove)
            yield

    def _probed(self, checkpoint: Checkpoint) -> list[ProbedLayer]:
        probe = Probe()
        with probe.attached(self._model), self._attending(PROBE):
            self._own(torch.arange(1, 5) % checkpoint.vocabulary)
        expected = checkpoint.number("num_hidden_layers", "n_layer", "num_layers")
        if len(probe.layers) != expected:
            raise Unsupported(
                f"{len(probe.layers)} of {expected} layers of "
                f"{type(self._model).__name__} go through transformers' attention interface; the "
                "others keep states that a paged cache does not hold"
            )
        return probe.layers

    def _own(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the scores after one text, as the model computes them by itself: [T, V].

        It counts positions by itself, too: one that begins behind 0 shows in the scores.
        """
        row = ids.to(self.device).unsqueeze(0)
        logits: torch.Tensor = self._model(input_ids=row, use_cache=False).logits[0]
        return logits

    @contextlib.contextmanager
    def _attending(self, name: str) -> Iterator[None]:
        self._model.set_attn_implementation(name)
        try:
            yield
        finally:
            self._model.set_attn_implementation(PAGED)

    def _check(self, vocabulary: int) -> None:
        """Compare a short run over a paged cache with the model's own attention.

        Raises:
            Unsupported: they differ by more than rounding.
        """
        texts = [(torch.arange(count) * 7 + 3) % vocabulary for count in CHECK_LENGTHS]
        with self._attending("eager"):
            own = torch.stack([self._own(text)[-1].float() for text in texts])
        cache = PagedCache(
            self.shapes,
            block_size=CHECK_BLOCK,
            num_blocks=2 * max(CHECK_LENGTHS),
            dtype=self.dtype,
            device=self.device,
        )
        for batch in _check_batches([text.numpy() for text in texts]):
            logits = self.logits(stage(batch, cache, self.device))
        difference = float((logits.float() - own).abs().max() / own.abs().max())
        if not difference <= TOLERANCE[self.dtype]:
            raise Unsupported(
                "scores over a paged cache differ from those of "
                f"{type(self._model).__name__} by {difference:.2g} of the largest; its layers do "
                "something that transformers' attention interface does not show"
            )


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **_options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as transformers' attention functions do: FP [1, T, H, D] for [1, H, T, D].

    No mask is made for it; the argument has the name that some modules give it by.
    """
    del attention_mask
    layer = module.ge_layer
    found = layer.current.step.attend(
        layer.index, layer.attend, *(item[0].transpose(0, 1) for item in (query, key, value))
    )
    return found.view(1, query.shape[2], query.shape[1], -1), None


def _adapt(
    step: StepTensors,
    number: int,
    _module: torch.nn.Module,
    given: tuple[torch.Tensor],
    out: torch.Tensor,
) -> None:
    """Add what the step's adapters have to add to a layer's outputs [1, T, outputs]."""
    step.adapt(number, given[0].flatten(0, -2), out.view(-1, out.shape[-1]))


def _linears(model: Any) -> tuple[list[torch.nn.Module], tuple[Product, ...]]:
    """Return the linear layers that see every token once, and each as a product.

    Not the one that gives the scores, which sees the last tokens alone, and not those of experts.
    """
    with importing():
        from transformers.pytorch_utils import Conv1D

    modules: list[torch.nn.Module] = []
    products: list[Product] = []
    for name, module in model.named_modules():
        if module is model.get_output_embeddings() or ".experts." in name:
            continue
        if isinstance(module, (torch.nn.Linear, Conv1D)):
            linear = isinstance(module, torch.nn.Linear)
            inputs = module.in_features if linear else module.nx
            outputs = module.out_features if linear else module.nf
            modules.append(module)
            products.append(Product(inputs=inputs, layers={name: outputs}))
    return modules, tuple(products)


def _load(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """Return transformers' model of a checkpoint, for serving only."""
    try:
        with importing():
            from transformers import (
                AttentionInterface,
                AttentionMaskInterface,
                AutoModelForCausalLM,
            )
    except ImportError as error:
        raise DeviceUnavailable(
            f"{checkpoint.folder}: this architecture needs transformers; "
            "pip install 'triton-ge-backend[generation]'"
        ) from error
    # No mask is registered for ours: none is made then, which would wait for the device.
    AttentionInterface.register(PAGED, paged_attention)
    AttentionInterface.register(PROBE, probe_attention)
    AttentionMaskInterface.register(PROBE, probe_mask)
    with _refusing(checkpoint):
        return load_pretrained(
            AutoModelForCausalLM,
            checkpoint.folder,
            dtype,
            attn_implementation=PAGED,
        )


def _refusing(checkpoint: Checkpoint) -> contextlib.AbstractContextManager[None]:
    kind = checkpoint.model_type
    return refusing(
        checkpoint.folder,
        f"transformers does not run {kind!r} through its attention interface",
        checkpoint.code_hint,
    )


def _check_batches(texts: list[Any]) -> Iterator[Batch]:
    """Yield two steps: the first half of each text, then the rest, one group each."""
    blocks = -(-max(map(len, texts)) // CHECK_BLOCK)
    tables = 1 + np.arange(len(texts) * blocks).reshape(len(texts), blocks)
    ends = [(0, len(text) // 2, len(text)) for text in texts]
    for turn in (0, 1):
        spans = [np.arange(end[turn], end[turn + 1]) for end in ends]
        yield Batch(
            ids=np.concatenate([text[span] for text, span in zip(texts, spans, strict=True)]),
            positions=np.concatenate(spans),
            slots=np.concatenate(
                [
                    table[span // CHECK_BLOCK] * CHECK_BLOCK + span % CHECK_BLOCK
                    for table, span in zip(tables, spans, strict=True)
                ]
            ),
            groups=tuple(
                Group(
                    rows=1,
                    query=len(span),
                    tables=table[None, :],
                    lengths=np.array([span[-1] + 1]),
                )
                for table, span in zip(tables, spans, strict=True)
            ),
            sampled=np.cumsum([len(span) for span in spans]) - 1,
            rows=(),
        )
