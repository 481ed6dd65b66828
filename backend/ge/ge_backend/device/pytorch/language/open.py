"""A checkpoint as a language model in torch: which precision, how many threads, on which device."""

from __future__ import annotations

import torch

from ge_backend.device.cores import usable_cores
from ge_backend.device.files.checkpoint import Checkpoint, read_checkpoint
from ge_backend.device.language.open import OpenedLanguage, OpenLanguage
from ge_backend.device.preprocess.text import open_tokenizer
from ge_backend.device.pytorch.language.loading import load_decoder
from ge_backend.device.pytorch.language.model import TorchLanguageModel
from ge_backend.errors import DeviceUnavailable

__all__ = ["open_torch"]

DTYPES = {"bf16": "BF16", "fp16": "FP16"}


def open_torch(asked: OpenLanguage) -> OpenedLanguage:
    """See `open_language`."""
    checkpoint = read_checkpoint(asked.folder)
    device = _device(asked.device)
    model = TorchLanguageModel(
        checkpoint,
        load_decoder(checkpoint, dtype=_dtype(asked, checkpoint), device=device),
        block_size=asked.block_size,
        memory=asked.memory,
        threads=asked.threads or usable_cores(),
    )
    path = checkpoint.tokenizer
    return OpenedLanguage(
        model=model,
        tokenizer=None if path is None else open_tokenizer(path),
        sampling=checkpoint.sampling,
    )


def _dtype(asked: OpenLanguage, checkpoint: Checkpoint) -> str:
    """Return what weights and cache are held in; a CPU has no arithmetic in FP16."""
    dtype = DTYPES.get(asked.precision, checkpoint.dtype)
    return "FP32" if asked.device == "cpu" and dtype == "FP16" else dtype


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise DeviceUnavailable(f"torch knows no device {name!r}: {error}") from error
