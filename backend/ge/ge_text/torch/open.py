"""A checkpoint as a language model in torch: which precision, how many threads, on which device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ge_backend.device.machine.cores import usable_cores
from ge_backend.engines.preprocess.text import open_tokenizer
from ge_backend.engines.torch.device_errors import device_errors, meaning
from ge_backend.engines.torch.slow_half import warn_of_slow_half
from ge_backend.engines.torch.streams import Streams
from ge_backend.engines.torch.vendor import Vendor
from ge_backend.errors import DeviceUnavailable, drop_frames
from ge_backend.model.files.checkpoint import Checkpoint, read_checkpoint
from ge_text.models.guide import open_guides
from ge_text.models.open import OpenedLanguage, OpenLanguage, cached_as, held_as
from ge_text.torch.base import Decoder
from ge_text.torch.cache import CacheForm
from ge_text.torch.loading import DTYPES, load_decoder
from ge_text.torch.model import TorchLanguageModel

__all__ = ["open_torch", "opened_with"]


def open_torch(asked: OpenLanguage) -> OpenedLanguage:
    """See `open_language`."""
    checkpoint = read_checkpoint(asked.folder)
    streams = None if asked.streams is None else asked.streams()
    device = _device(asked.device if streams is None else streams.vendor.device)
    dtype = held_as(checkpoint.dtype, asked.precision, asked.device)
    cache_dtype = DTYPES[cached_as(dtype, asked.cache_dtype)]
    if device.type == "cpu":
        warn_of_slow_half(str(asked.folder), DTYPES[dtype])
    taken = contextlib.ExitStack()
    try:
        with _errors(str(asked.folder), None if streams is None else streams.vendor):
            decoder = load_decoder(checkpoint, dtype=dtype, device=device)
            taken.callback(decoder.close)
            if streams is not None:
                streams.settle()  # weights were brought by another stream
        return opened_with(decoder, checkpoint, asked, cache_dtype=cache_dtype, streams=streams)
    except BaseException as error:
        taken.close()
        if streams is not None:
            _give_back(streams, error)
        raise


def opened_with(
    decoder: Decoder,
    checkpoint: Checkpoint,
    asked: OpenLanguage,
    *,
    cache_dtype: torch.dtype,
    streams: Streams | None = None,
) -> OpenedLanguage:
    """Return a decoder as a language model, with what stands beside it in its checkpoint."""
    model = TorchLanguageModel(
        checkpoint,
        decoder,
        form=CacheForm(block_size=asked.block_size, dtype=cache_dtype),
        memory=asked.memory,
        threads=asked.threads or usable_cores(),
        streams=streams,
    )
    path = checkpoint.tokenizer if asked.text else None
    return OpenedLanguage(
        model=model,
        tokenizer=None if path is None else open_tokenizer(path),
        sampling=checkpoint.sampling,
        compile_structure=None
        if path is None
        else open_guides(path, checkpoint.vocabulary, checkpoint.eos),
    )


@contextlib.contextmanager
def _errors(folder: str, vendor: Vendor | None) -> Iterator[None]:
    try:
        with device_errors(folder, vendor):
            yield
    except (RuntimeError, MemoryError) as error:
        raise meaning(error, folder, vendor) from error


def _give_back(streams: Streams, error: BaseException) -> None:
    """Return the memory of weights that were not all loaded to the device."""
    drop_frames(error)
    with (
        contextlib.suppress(RuntimeError),
        streams.computing(),
    ):  # a broken device has no use for it
        streams.vendor.give_back()


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise DeviceUnavailable(f"torch knows no device {name!r}: {error}") from error
