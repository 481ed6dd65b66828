"""A Hugging Face encoder as one ONNX file: exported with free sizes, and checked against it."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError
from ge_backend.model.files.encoder_folder import (
    CONFIG,
    EncoderFolder,
    encoder_files,
    is_encoder,
    read_encoder_folder,
)

__all__ = ["Exported", "copy_checkpoint", "export_onnx", "write_tokenizer"]

INPUTS = ("input_ids", "attention_mask")
# Of an encoder that tells the texts of a pair apart by more than what stands between them.
SEGMENTS = "token_type_ids"
MAX_ROWS = 256
TOLERANCE = 1e-4
# (rows, length) that are compared; none longer than the checkpoint takes.
CHECKED = ((1, 1), (1, 2), (3, 7), (8, 16), (2, 64), (1, 512))
# Without any of them transformers makes a tokenizer that knows no word.
VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)
INSTALL = "pip install 'triton-ge-backend[import]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written.

    Attributes:
        width: the size of the output's last axis.
        difference: how far it is from the original.
        inputs: the names of what it takes, each INT64 [batch, sequence].
    """

    width: int
    difference: float
    inputs: tuple[str, ...] = INPUTS


def export_onnx(checkpoint: EncoderFolder, path: Path) -> Exported:
    """Write the encoder: INT64 `Exported.inputs` [batch, sequence] -> FP32 output.

    Raises:
        DeviceUnavailable: torch, transformers, or what exports and runs ONNX is missing.
        ModelError: the checkpoint cannot be loaded or exported, its rows depend on their padding,
            or the file answers otherwise than transformers does.
    """
    torch = _imported()
    try:
        module = _module(checkpoint)
        _check_padding(checkpoint, module)
        batch = torch.export.Dim("batch", min=1, max=MAX_ROWS)
        sequence = torch.export.Dim("sequence", min=1, max=checkpoint.max_length)
        with _quiet():
            torch.onnx.export(
                module,
                _example(2, min(16, checkpoint.max_length), module),
                str(path),
                input_names=list(module.inputs),
                output_names=[checkpoint.output],
                dynamic_shapes=tuple({0: batch, 1: sequence} for _ in module.inputs),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # what torch and transformers raise has no common root
        raise ModelError(f"{checkpoint.folder} cannot be exported: {error}") from error
    return _compared(checkpoint, module, path)


def copy_checkpoint(checkpoint: EncoderFolder, folder: Path) -> Exported:
    """Copy what an encoder is made of, to be run as it is, without padding.

    Raises:
        DeviceUnavailable: torch or transformers is missing.
        ConfigError: no server would take the copy for an encoder.
        ModelError, Unsupported: see `PackedEncoder`.
    """
    torch = _imported()
    from ge_backend.engines.torch.encoder import PackedEncoder
    from ge_backend.engines.torch.encoder_layers import TorchLayers

    if not is_encoder(checkpoint.folder):
        raise ConfigError(
            f"{checkpoint.folder / CONFIG} names no 'architectures', by which a server tells what "
            'the folder is; add them, such as ["BertModel"], or import it without --packed'
        )
    encoder = PackedEncoder(checkpoint, torch.float32)
    difference = encoder.difference(TorchLayers(encoder).layers(torch.get_num_threads(), 1))
    for file in encoder_files(checkpoint.folder):
        place = folder / file.relative_to(checkpoint.folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    read_encoder_folder(folder)  # as a server does
    inputs = _inputs(checkpoint, encoder.token_types)
    return Exported(width=encoder.width, difference=difference, inputs=inputs)


def write_tokenizer(checkpoint: EncoderFolder, path: Path) -> None:
    """Write the `tokenizer.json` of a checkpoint as transformers makes it.

    Its own is not enough: `tokenizer_config.json` may say which end of a text is cut off, whether
    capitals count, and the like, and goes before it.

    Raises:
        DeviceUnavailable: transformers is missing.
        ModelError: there is no tokenizer, or none that the library `tokenizers` can run.
    """
    folder = checkpoint.folder
    if not any((folder / name).is_file() for name in VOCABULARIES):
        there = ", ".join(VOCABULARIES)
        raise ModelError(f"{folder} has no tokenizer that can be served: expected one of {there}")
    _imported()
    import transformers

    try:
        made = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        tokenizer = made.backend_tokenizer
        tokenizer.enable_truncation(checkpoint.max_length, direction=made.truncation_side)
        tokenizer.save(str(path))
    except Exception as error:  # likewise
        raise ModelError(f"{folder} has no tokenizer that can be served: {error}") from error


def _imported() -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"  # a folder is enough: nothing is fetched
    try:
        import onnxruntime
        import onnxscript
        import torch
        import transformers
    except ImportError as error:
        raise DeviceUnavailable(
            f"a checkpoint is read with transformers and exported with torch ({error}); {INSTALL}"
        ) from error
    del onnxruntime, onnxscript
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return torch


def _module(checkpoint: EncoderFolder) -> Any:
    """Return the encoder with what comes behind it, in evaluation mode, in FP32."""
    import torch

    from ge_backend.engines.torch.pretrained import load_encoder, token_types

    # Attention written out: of a fused one the exporter makes more nodes, which cost time in ONNX
    # Runtime, most of them to make numbers of a row without tokens, which are not read.
    encoder = load_encoder(
        checkpoint, torch.float32, use_safetensors=None, attn_implementation="eager"
    )

    class Encoder(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder
            self.vocabulary = int(encoder.config.vocab_size)
            self.inputs = _inputs(checkpoint, token_types(encoder))

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            given = (input_ids, attention_mask, token_type_ids)
            found = self.encoder(**dict(zip(self.inputs, given, strict=False)))
            if checkpoint.classifies:
                return found.logits
            hidden = found.last_hidden_state
            if not checkpoint.pooling:
                return hidden
            pooled = _pooled(hidden, attention_mask, checkpoint.pooling)
            return torch.nn.functional.normalize(pooled, dim=1) if checkpoint.normalised else pooled

    return Encoder().eval()


def _inputs(checkpoint: EncoderFolder, types: int) -> tuple[str, ...]:
    return (*INPUTS, SEGMENTS) if checkpoint.pairs and types > 1 else INPUTS


def _pooled(hidden: Any, mask: Any, how: str) -> Any:
    """Return one vector per row of [batch, sequence, width]; padding does not count."""
    if how == "cls":
        return hidden[:, 0]
    if how == "last":
        places = (mask * mask.cumsum(1)).argmax(1)
        return hidden.gather(1, places[:, None, None].expand(-1, -1, hidden.shape[2])).squeeze(1)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    if how == "max":
        return (hidden * weights + (1 - weights) * -1e9).amax(1)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _compared(checkpoint: EncoderFolder, module: Any, path: Path) -> Exported:
    """Return the largest absolute difference at several shapes, rows of unequal lengths among them.

    Padded positions of an output per token are not compared: the backend cuts them off.
    """
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    difference, width = 0.0, 0
    for rows, length in CHECKED:
        example = _example(rows, min(length, checkpoint.max_length), module)
        with torch.inference_mode():
            expected = module(*example)
        feed = {name: each.numpy() for name, each in zip(module.inputs, example, strict=True)}
        (found,) = session.run(None, feed)
        apart = (torch.from_numpy(found) - expected).abs()
        if checkpoint.per_token:
            apart = apart * example[1].unsqueeze(-1)
        difference, width = max(difference, float(apart.max())), int(expected.shape[-1])
    if not difference <= TOLERANCE:
        raise ModelError(
            f"{path} differs from the transformers model by {difference:.1e}, expected at most "
            f"{TOLERANCE:g}: it cannot be exported faithfully"
        )
    return Exported(width=width, difference=difference, inputs=module.inputs)


def _check_padding(checkpoint: EncoderFolder, module: Any) -> None:
    """Raise unless padded rows answer as the same rows do alone."""
    import torch

    ids, *others = _example(8, min(16, checkpoint.max_length), module)
    example = (ids * others[0], *others)  # 0 is what padding consists of when models are served
    with torch.inference_mode():
        for row, padded in enumerate(module(*example)):
            length = int(example[1][row].sum())
            alone = module(*(each[row : row + 1, :length] for each in example))[0]
            found = padded[:length] if checkpoint.per_token else padded
            apart = float((found - alone).abs().max())
            if not apart <= TOLERANCE:
                raise ModelError(
                    f"a padded row differs from the same row alone by {apart:.1e}, expected at "
                    f"most {TOLERANCE:g}: the encoder looks at padding, so a text would be "
                    "answered otherwise beside longer ones"
                )


def _example(rows: int, length: int, module: Any) -> tuple[Any, ...]:
    """Return its inputs, in which every row but the first is shorter than `length`.

    The first ids are left out where there are others: they are special.
    """
    import torch

    vocabulary = module.vocabulary
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    ids = torch.randint(
        min(5, vocabulary - 1), min(100, vocabulary), (rows, length), generator=generator
    )
    kept = (length - 3 * torch.arange(rows)).clamp(min=1)
    mask = (torch.arange(length) < kept.unsqueeze(1)).to(torch.int64)
    second = torch.arange(length) >= (kept // 2).unsqueeze(1)
    return (ids, mask, mask * second)[: len(module.inputs)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what the exporter tells its own developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
