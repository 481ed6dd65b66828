"""From a checkpoint folder to a decoder on a device: ours where it covers it, else transformers'.

Weights are mapped from safetensors and converted one by one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch

from ge_backend.device.imports import importing
from ge_backend.errors import DeviceUnavailable, ModelError
from ge_backend.model.files.checkpoint import Checkpoint
from ge_text.torch.base import Decoder
from ge_text.torch.llama import LlamaDecoder
from ge_text.torch.llama_weights import LlamaWeights, Read, not_covered

__all__ = ["CPU", "DTYPES", "NAMES", "load_decoder", "reading"]

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
DTYPES = {"FP32": torch.float32, "BF16": torch.bfloat16, "FP16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def load_decoder(checkpoint: Checkpoint, *, dtype: str, device: torch.device) -> Decoder:
    """Return the decoder of a checkpoint, with its weights in FP32, BF16 or FP16 on the device.

    Raises:
        ModelError: the weights are not those that the configuration asks for.
        Unsupported: no decoder here can run it; the message has the reason.
    """
    reason = not_covered(checkpoint)
    if not reason:
        with reading(checkpoint, DTYPES[dtype], device) as read:
            weights = LlamaWeights(checkpoint, read)
            return LlamaDecoder(weights, dtype=DTYPES[dtype], device=device)
    log.info("%s: transformers' modules compute it: %s", checkpoint.folder, reason)
    with importing():
        from ge_text.torch.decoder import TransformersDecoder

    return TransformersDecoder(checkpoint, dtype=DTYPES[dtype], device=device)


@contextlib.contextmanager
def reading(
    checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device = CPU
) -> Iterator[Read]:
    """Give what reads a tensor by name; the files are mapped meanwhile.

    Raises:
        ModelError: a file cannot be read.
        DeviceUnavailable: safetensors is not installed.
    """
    try:
        with importing():
            import safetensors
    except ImportError as error:
        raise DeviceUnavailable(
            "a language model needs safetensors; pip install 'triton-ge-backend[generation]'"
        ) from error
    with contextlib.ExitStack() as opened:
        files = {}
        for path in checkpoint.weights:
            try:
                file = opened.enter_context(safetensors.safe_open(str(path), framework="pt"))
            except (OSError, safetensors.SafetensorError) as error:
                raise ModelError(f"{path}: cannot be read: {error}") from error
            files.update(dict.fromkeys(file.keys(), file))

        # A view of it would keep the whole file mapped.
        yield lambda name: files[name].get_tensor(name).to(device=device, dtype=dtype, copy=True)
