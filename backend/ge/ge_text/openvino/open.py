"""A checkpoint as a language model that OpenVINO computes; cache and drawing are torch's."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ge_backend.device.machine.cores import usable_cores
from ge_backend.device.machine.host_memory import give_back_freed
from ge_backend.engines.ov.arithmetic import has_int8
from ge_backend.engines.ov.precision import computed_in
from ge_backend.errors import ModelError, Unsupported
from ge_backend.model.files.checkpoint import Checkpoint, read_checkpoint
from ge_backend.model.files.model_file import stamp_of
from ge_text.models.open import INT8, OpenedLanguage, OpenLanguage, cached_as, held_as
from ge_text.openvino.decoder import OpenVinoDecoder
from ge_text.openvino.graph import BLOCK_SIZE
from ge_text.openvino.nearness import divergence, fixed_ids, log_probabilities
from ge_text.torch.llama_weights import LlamaWeights, not_covered
from ge_text.torch.loading import (
    DTYPES,
    NAMES,
    reading,
)
from ge_text.torch.open import opened_with

__all__ = ["load_openvino", "open_openvino"]

log = logging.getLogger(__name__)

# Of what a model expects next in eight bits, from what it expects in full: the mean, in nats.
# docs/precision.md has what models reach.
MAX_DIVERGENCE = 0.05
# With a cache of eight bits this number of tokens is read at once, and the last of them one by one:
# heads of 12, 20, 44 or 100 numbers had other scores in steps of one token, by 2 to 4 nats and with
# no error (2026.4, on a processor with AVX2).
READ, SINGLES = 48, 8
NO_INT8 = (
    "precision 'int8', and this processor has no products of 8 bits (avx512_vnni, avx_vnni or "
    "amx_int8); take 'bf16'"
)


def open_openvino(asked: OpenLanguage) -> OpenedLanguage:
    """See `open_language`."""
    checkpoint = read_checkpoint(asked.folder)
    held = held_as(checkpoint.dtype, asked.precision, asked.device)
    reason = _unable(asked, held) or not_covered(checkpoint)
    if reason:
        raise Unsupported(f"{asked.folder}: OpenVINO does not run it: {reason}")
    load = partial(
        load_openvino,
        checkpoint,
        dtype=held,
        threads=asked.threads or usable_cores(),
        narrow_cache=asked.cache_dtype == "int8",
    )
    decoder = _compressed(asked, checkpoint, held, load) if asked.precision == "int8" else load()
    if asked.cache_dtype == "int8":
        _check_cache(decoder, checkpoint)
    if (computed := NAMES[decoder.dtype]) != held:
        log.info("this processor has no %s: weights of it are computed in %s", held, computed)
    return opened_with(decoder, checkpoint, asked, cache_dtype=decoder.cache_dtype)


def _check_cache(decoder: OpenVinoDecoder, checkpoint: Checkpoint) -> None:
    """See that steps of one token read what others have written.

    Raises:
        Unsupported: they do not; the decoder is closed.
    """
    ids = fixed_ids(checkpoint)[:READ]
    found = (
        log_probabilities(decoder, ids, singles) for singles in (0, min(SINGLES, len(ids) - 1))
    )
    figure = divergence(*found)
    if figure > MAX_DIVERGENCE:
        decoder.close()
        raise Unsupported(
            f"{checkpoint.folder}: kv_cache_dtype 'int8' with heads of {checkpoint.head_dim()} "
            f"numbers: steps of one token expect what follows otherwise, by KL {figure:.4f} nats, "
            f"expected {MAX_DIVERGENCE:g} or less; take 'model'"
        )


def _compressed(
    asked: OpenLanguage, checkpoint: Checkpoint, held: str, load: Callable[..., OpenVinoDecoder]
) -> OpenVinoDecoder:
    """Return the decoder with weights of eight bits, or without where they are too far from it.

    Only where it is not known how far they are, both are compiled. One of them is in memory at a
    time: in full it reads the text first, and is closed.
    """
    ids = fixed_ids(checkpoint)
    tested: list[OpenVinoDecoder] = []

    def measured() -> float:
        with contextlib.closing(load()) as full:
            expected = log_probabilities(full, ids)
        give_back_freed()  # before there is another one
        tested.append(load(compressed=True))
        return divergence(expected, log_probabilities(tested[0], ids))

    figure = 0.0 if asked.assumed else asked.kept(checkpoint.files, measured)
    told = f"{figure:.4f} nats over {len(ids)} tokens, expected {MAX_DIVERGENCE:g} or less"
    if figure > MAX_DIVERGENCE:
        log.warning(
            "%s: precision 'int8' is too far from %s: KL %s; served in %s; the parameter "
            "'assume: precision' keeps it",
            *(checkpoint.folder, held, told, held),
        )
        for decoder in tested:
            decoder.close()
        return load()
    decoder = tested[0] if tested else load(compressed=True)
    if not decoder.compressed:
        log.warning(
            "%s: precision 'int8' changes nothing: no weights are large enough", checkpoint.folder
        )
        return decoder
    log.info("%s: %d weights have 8 bits", checkpoint.folder, decoder.compressed)
    if not asked.assumed:
        log.info("%s: precision 'int8' is near enough: KL %s", checkpoint.folder, told)
    return decoder


def load_openvino(
    checkpoint: Checkpoint,
    *,
    dtype: str,
    threads: int,
    compressed: bool = False,
    narrow_cache: bool = False,
) -> OpenVinoDecoder:
    """Return the decoder of a checkpoint that `not_covered` has nothing against.

    Args:
        checkpoint: complete; see `read_checkpoint`.
        dtype: of the weights, FP32 or BF16. A processor without BF16 makes these wide as it reads
            them, and so has arithmetic, keys and values in FP32.
        threads: of one step.
        compressed: products have weights of eight bits.
        narrow_cache: keys and values have eight bits.

    Raises:
        ModelError, Unsupported: as `OpenVinoDecoder` does.
    """
    stamp = stamp_of(checkpoint.weights)

    def loaded(adapting: Callable[[], OpenVinoDecoder] | None) -> OpenVinoDecoder:
        with reading(checkpoint, DTYPES[dtype]) as read:
            decoder = OpenVinoDecoder(
                LlamaWeights(checkpoint, read),
                dtype=computed_in(DTYPES[dtype]),
                threads=threads,
                adapting=adapting,
                compressed=compressed,
                narrow_cache=narrow_cache,
            )
        give_back_freed()  # compiling goes by way of copies, as many bytes as the weights have
        return decoder

    def adapting() -> OpenVinoDecoder:
        if not _are(checkpoint.weights, stamp):
            raise ModelError(
                "the checkpoint's files are others than those that are served, and steps with "
                "adapters need those; have the server load the model"
            )
        return loaded(adapting=None)

    return loaded(adapting)


def _are(files: Sequence[Path], stamp: str) -> bool:
    """Return whether files are those of a stamp."""
    try:
        return stamp_of(files) == stamp
    except OSError:  # one is gone
        return False


def _unable(asked: OpenLanguage, held: str) -> str:
    """Return what speaks against it, whatever the checkpoint; "" where nothing does."""
    computed = NAMES[computed_in(DTYPES[held])]
    reasons = (
        (asked.precision == "int8" and not has_int8(), NO_INT8),
        (asked.device != "cpu", f"device {asked.device}"),
        (asked.block_size != BLOCK_SIZE, f"block_size {asked.block_size}, it has {BLOCK_SIZE}"),
        (
            cached_as(computed, asked.cache_dtype) not in {computed, INT8},
            f"kv_cache_dtype {asked.cache_dtype}",
        ),
        (asked.padded, "buckets, and its shapes are free"),
    )
    return next((reason for holds, reason in reasons if holds), "")
