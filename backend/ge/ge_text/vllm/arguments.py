"""vLLM's own arguments, under the names and in the forms of its command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from ge_backend.errors import ConfigError

__all__ = ["engine_arguments"]

DTYPES = {"origin": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# What the version folder and our own parameters say already.
OURS = ("model", "dtype", "served-model-name")
# What it reads a tokenizer from without fetching or guessing anything.
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
SWITCHES = {"true": "--", "false": "--no-"}


def engine_arguments(
    folder: Path, precision: str, served_as: str, options: Mapping[str, str]
) -> AsyncEngineArgs:
    """Return what `vllm serve FOLDER --…` would start with.

    It gets tokens; a tokenizer of its own, where the folder has one, is for structured outputs.

    Args:
        folder: the checkpoint.
        precision: `origin`, `fp32`, `bf16` or `fp16`.
        served_as: the model's name in vLLM's own messages.
        options: vLLM's arguments, `max_model_len` or `max-model-len`; a switch is true or false.
            What stands behind a dot is a key of a JSON argument, as vLLM writes it.

    Raises:
        ConfigError: vLLM does not know an argument, or not this value of it.

    Source: vllm-project/vllm 0.32.0, vllm/engine/arg_utils.py; switches are of
    `argparse.BooleanOptionalAction`. vllm/utils/argparse_utils.py@00da11e: keys.
    """
    parser = _Parser()
    AsyncEngineArgs.add_cli_args(parser)
    words = [f"--dtype={DTYPES[precision]}", f"--served-model-name={served_as}"]
    if not all((folder / name).is_file() for name in TOKENIZER):
        words.append("--skip-tokenizer-init")
    for given, value in sorted(options.items()):
        name, dot, key = given.partition(".")
        option = name.replace("_", "-") + dot + key
        if option in OURS:
            raise ConfigError(f"parameter 'vllm.{given}' is set by the backend; remove it")
        switch = None if dot else SWITCHES.get(value)
        words.append(f"--{option}={value}" if switch is None else f"{switch}{option}")
    known = parser.parse_args([f"--model={folder}", *words])
    arguments: AsyncEngineArgs = AsyncEngineArgs.from_cli_args(known)
    return arguments


class _Parser(FlexibleArgumentParser):  # type: ignore[misc]
    """Raises where vLLM's would end the process."""

    def error(self, message: str) -> None:
        raise ConfigError(f"vLLM refuses a parameter 'vllm.…': {message}")

    def exit(self, status: int = 0, message: str | None = None) -> None:
        del status
        self.error(message or "no help is shown here")
