"""Loading a checkpoint into transformers' own modules, for serving only."""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ge_backend.device.failures import reason
from ge_backend.device.imports import importing
from ge_backend.errors import (
    DeviceFault,
    GeError,
    GraphFailed,
    ModelError,
    OutOfMemory,
    Unsupported,
)
from ge_backend.model.files.encoder_folder import CONFIG, EncoderFolder
from ge_backend.model.files.json_file import read_json

__all__ = ["UNUSED", "load_encoder", "load_pretrained", "quiet", "refusing", "token_types"]

log = logging.getLogger(__name__)

# A checkpoint of embeddings often lacks the pooler, whose result is not used then.
UNUSED = "pooler"
MAX_NAMES = 5
# What a checkpoint is trained with before it is put to use, and tables that are made anew.
LEFT_OUT = re.compile(
    r"^(cls|sop_classifier|lm_head|head|decoder|\w*predictions|generator_\w+|vocab_\w+)\.|pooler|position_ids"
)

# While it loads, transformers sets torch's default type, which all threads have in common.
# Source: transformers 5, modeling_utils.py, `local_torch_dtype`.
_LOADING = threading.Lock()


def load_encoder(folder: EncoderFolder, dtype: torch.dtype, **options: Any) -> Any:
    """Return the model of an encoder with the head that it has; see `load_pretrained`."""
    with importing():
        from transformers import (
            AutoModel,
            AutoModelForSequenceClassification,
            AutoModelForTokenClassification,
        )

    auto, unused = AutoModel, UNUSED
    if folder.classifies:
        auto, unused = AutoModelForSequenceClassification, ""
        if folder.per_token:
            auto = AutoModelForTokenClassification
    return load_pretrained(auto, folder.folder, dtype, unused=unused, left_out=LEFT_OUT, **options)


def load_pretrained(
    auto: Any,
    folder: Path,
    dtype: torch.dtype,
    *,
    unused: str = "",
    left_out: re.Pattern[str] | None = None,
    use_safetensors: bool | None = True,
    **options: Any,
) -> Any:
    """Return the model of a checkpoint; no code of it is run.

    Args:
        auto: the class of transformers that loads it.
        folder: with `config.json` and weights.
        dtype: of the weights.
        unused: weights with this in their names may be missing; "" allows none.
        left_out: what names of weights have of which the model knows nothing, and need not; others
            are told. None tells none.
        use_safetensors: None: pickles of nothing but weights are read, too, where it has no others.
        options: for `from_pretrained`.

    Raises:
        ModelError: the weights are not those that the architecture has.
    """
    with _LOADING, quiet():
        _import_classes(folder)
        model, loading = auto.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=use_safetensors,
            output_loading_info=True,
            **options,
        )
    for what in ("missing_keys", "mismatched_keys"):
        names = sorted(map(str, loading[what]))
        if needed := [name for name in names if not unused or unused not in name]:
            raise ModelError(f"{what.replace('_', ' ')}: {', '.join(needed)}")
    if left_out and (lost := [n for n in loading["unexpected_keys"] if not left_out.search(n)]):
        more = f" and {len(lost) - MAX_NAMES} more" if len(lost) > MAX_NAMES else ""
        log.warning(
            "%s: %s computes nothing with %s%s, so answers are without that",
            folder,
            type(model).__name__,
            ", ".join(sorted(lost)[:MAX_NAMES]),
            more,
        )
    return model.eval().requires_grad_(False)


def _import_classes(folder: Path) -> None:
    """Import the modules of a checkpoint's architecture, which loading would import otherwise.

    What is wrong with the folder, or is not installed, loading says.
    """
    names: list[object] = []
    with contextlib.suppress(ModelError):
        names += read_json(folder / CONFIG).get("architectures") or ()
    with importing():
        import transformers

        for name in names:
            with contextlib.suppress(AttributeError, ImportError, RuntimeError):
                getattr(transformers, str(name))


def token_types(model: Any) -> int:
    """Return how many types of tokens a model tells apart by `token_type_ids`; 1: it takes none."""
    if "token_type_ids" not in inspect.signature(model.forward).parameters:
        return 1
    return int(getattr(model.config, "type_vocab_size", 0) or 1)


@contextlib.contextmanager
def refusing(folder: Path, what: str, instead: str = "") -> Iterator[None]:
    """Turn what transformers says against a checkpoint into one of our errors.

    Args:
        folder: of the checkpoint.
        what: cannot be done with it.
        instead: what else there is; ends the message.
    """
    try:
        yield
    except (DeviceFault, OutOfMemory) as error:  # whatever else there is would not help
        raise type(error)(f"{folder}: {error}") from error
    except GraphFailed as error:
        raise Unsupported(f"{folder}: {what}: {error}{instead}") from error
    except GeError as error:
        raise type(error)(f"{folder}: {error}{instead}") from error
    except (
        ArithmeticError,
        AttributeError,
        ImportError,
        IndexError,
        KeyError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise Unsupported(f"{folder}: {what}: {reason(error)}{instead}") from error
    except _validation() as error:
        cause = reason(error.__cause__ or error)
        raise ModelError(f"{folder / CONFIG}: transformers refuses it: {cause}") from error


def _validation() -> type[Exception]:
    """Return what transformers 5 raises for a setting of a wrong kind, which is no `ValueError`."""
    with importing():
        from huggingface_hub.errors import StrictDataclassError

    raised: type[Exception] = StrictDataclassError
    return raised


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hold back transformers' progress bars and what it says to people at a terminal."""
    with importing():
        from transformers.utils import logging as theirs

    logger = logging.getLogger("transformers")
    level, bars = logger.level, theirs.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            theirs.enable_progress_bar()
