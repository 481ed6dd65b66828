"""`ge-backend import`: a Hugging Face encoder becomes models that are served."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ge_backend.engines.torch.encoder_export import (
    copy_checkpoint,
    export_onnx,
    write_tokenizer,
)
from ge_backend.errors import ConfigError
from ge_backend.model.files.encoder_folder import (
    PROMPTS,
    EncoderFolder,
    default_prompt,
    encoder_files,
    read_encoder_folder,
)
from ge_backend.model.files.usable import check_usable
from ge_tools.model.imported import (
    LABELS,
    encoder_config,
    ensemble_config,
    lower_cased,
    normaliser_note,
    tokenizer_config,
)
from ge_tools.report.waiting import waiting

__all__ = ["register"]

DESCRIPTION = """\
Takes a folder of sentence-transformers, or an encoder checkpoint of transformers, and writes three
models: NAME takes texts; NAME_tokenizer and NAME_encoder are its steps. The graph is compared with
the original before anything is written. Nothing is downloaded.
"""

NAME = re.compile(r"[\w-][\w.-]*")
# A folder's has at most 255, and those of the steps are longer than this one.
MAX_NAME_BYTES = 240


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "import", help="make models of a Hugging Face encoder", description=DESCRIPTION
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with config.json and weights")
    parser.add_argument(
        "--into", type=Path, default=Path("models"), metavar="MODEL_REPOSITORY", help="%(default)s"
    )
    parser.add_argument(
        "--packed",
        action="store_true",
        help="keep the checkpoint instead of exporting it: on a CPU it runs without padding",
    )
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="it is given two texts at once, as rankers are: text and text_pair",
    )
    parser.add_argument("--name", help="of the model that takes texts; default: the folder's name")
    parser.set_defaults(func=import_)


def import_(arguments: argparse.Namespace) -> int:
    """Write the models and say what they are; return 0.

    Raises:
        ConfigError: the folder is not there, not an encoder's, puts a prompt before each text, or
            takes no pairs; a model of that name is there already, no model can have that name, or
            nothing can be written.
        ModelError: it cannot be exported faithfully.
        DeviceUnavailable: what exports is not installed.
    """
    _check_folder(arguments.folder)
    check_usable([*encoder_files(arguments.folder), *arguments.folder.glob("tokenizer*")])
    checkpoint = replace(read_encoder_folder(arguments.folder), pairs=arguments.pairs)
    _check_pairs(checkpoint)
    _check_prompt(arguments.folder)
    name = arguments.name or re.sub(r"\W+", "_", arguments.folder.resolve().name).strip("_")
    _check_name(name)
    names = (name, f"{name}_tokenizer", f"{name}_encoder")
    with _draft(arguments.into, names) as draft:
        with waiting(f"exporting {arguments.folder} and comparing it"):
            difference, note = _write(checkpoint, Path(draft), name, packed=arguments.packed)
        for one in reversed(names):  # the ensemble last: its steps are there by then
            shutil.move(Path(draft) / one, arguments.into / one)
    taken = "pairs of texts" if checkpoint.pairs else "texts"
    print(f"{name}: {taken} in, {checkpoint.output} out; its steps are {names[1]} and {names[2]}")
    print(f"largest difference from transformers: {difference:.1e}")
    if note:
        print(note)
    return 0


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        raise ConfigError(
            f"{folder} is a file; expected the folder of a checkpoint, with config.json and "
            "weights. A graph (.onnx, .xml, .pt2) needs no import: put it into MODEL/1/ of a model "
            'repository, with a config.pbtxt of the line backend: "ge" in MODEL'
        )
    if not folder.is_dir():
        raise ConfigError(
            f"{folder} is not a folder; nothing is downloaded: get it first, such as with hf "
            f"download OWNER/{folder.name} --local-dir {folder.name}"
        )


def _check_pairs(checkpoint: EncoderFolder) -> None:
    if checkpoint.pairs and checkpoint.output != "scores":
        raise ConfigError(
            f"{checkpoint.folder} gives {checkpoint.output}; expected a checkpoint for sequence "
            "classification for --pairs, since only such a one is trained on two texts at once"
        )


def _check_prompt(folder: Path) -> None:
    if prompt := default_prompt(folder):
        raise ConfigError(
            f"{folder / PROMPTS} puts {prompt!r} before each text, which the models would not; "
            "set default_prompt_name to null there, and let clients send it"
        )


def _check_name(name: str) -> None:
    """Raise unless a folder, and so a model, can have this name: it is no path."""
    if not NAME.fullmatch(name) or len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(
            f"{name!r} cannot be a model's name; give a --name of letters, digits, '_', '-' and "
            f"'.', at most {MAX_NAME_BYTES} bytes, that does not begin with '.'"
        )


def _draft(into: Path, names: Sequence[str]) -> tempfile.TemporaryDirectory[str]:
    """Return a new folder for models that will be in a repository, in which none of them is yet.

    It is beside the repository: in it a server would take for a model what a killed process left.
    There it is only where nothing can be written beside it, or moved from there.
    """
    try:
        for name in names:
            if (into / name).exists():
                raise ConfigError(f"{into / name} is there already; give another --name")
        into.mkdir(parents=True, exist_ok=True)
        beside = into.resolve().parent
        near = os.access(beside, os.W_OK) and beside.stat().st_dev == into.stat().st_dev
        return tempfile.TemporaryDirectory(prefix=".import-", dir=beside if near else into)
    except OSError as error:
        raise ConfigError(f"{into} cannot be written to: {error}; see --into") from error


def _write(checkpoint: EncoderFolder, root: Path, name: str, *, packed: bool) -> tuple[float, str]:
    """Write the three models; return how far the graph is from the original, and what to say."""
    encoder, tokenizer, ensemble = (root / f"{name}{end}" for end in ("_encoder", "_tokenizer", ""))
    for folder in (encoder, tokenizer, ensemble):
        (folder / "1").mkdir(parents=True)
    file = tokenizer / "1" / "tokenizer.json"
    write_tokenizer(checkpoint, file)
    note = normaliser_note(checkpoint.folder / file.name, file)
    if checkpoint.lower_case:
        file.write_text(lower_cased(file.read_text(encoding="utf-8")), encoding="utf-8")
    if packed:
        exported = copy_checkpoint(checkpoint, encoder / "1")
    else:
        exported = export_onnx(checkpoint, encoder / "1" / "model.onnx")
    written = {
        encoder / "config.pbtxt": encoder_config(checkpoint, exported),
        tokenizer / "config.pbtxt": tokenizer_config(checkpoint),
        ensemble / "config.pbtxt": ensemble_config(checkpoint, exported, name),
    }
    for folder in (encoder, ensemble) if checkpoint.labels else ():
        written[folder / LABELS] = "\n".join(checkpoint.labels) + "\n"
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return exported.difference, note
