"""A checkpoint as a model that vLLM runs, with our own tokenizer beside it."""

from __future__ import annotations

from ge_backend.device.files.checkpoint import read_checkpoint
from ge_backend.device.language.open import OpenedScheduled, OpenScheduled
from ge_backend.device.preprocess.text import open_tokenizer
from ge_backend.device.vllm.arguments import engine_arguments
from ge_backend.device.vllm.model import VllmModel

__all__ = ["open_vllm"]


def open_vllm(asked: OpenScheduled) -> OpenedScheduled:
    """See `open_scheduled`."""
    checkpoint = read_checkpoint(asked.folder, quantised=True)
    path = checkpoint.tokenizer
    model = VllmModel(
        engine_arguments(asked.folder, asked.precision, asked.served_as, asked.options),
        vocabulary=checkpoint.vocabulary,
        eos=checkpoint.eos,
        on_death=asked.on_death,
    )
    return OpenedScheduled(
        model=model,
        tokenizer=None if path is None else open_tokenizer(path),
        sampling=checkpoint.sampling,
    )
