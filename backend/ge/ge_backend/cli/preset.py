"""`ge-backend preset`: settings that belong together, for a purpose, written into a model."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ge_backend.cli.model.applied import apply_settings
from ge_backend.cli.model.changes import changes_of, refuse_ensemble
from ge_backend.cli.model.presets import PRESETS, TEXT_PRESETS
from ge_backend.cli.report.presets import changes_text, presets_text
from ge_backend.config.model_folder import read_document, read_folder
from ge_backend.config.settings import VLLM
from ge_backend.device.files.checkpoint import is_checkpoint
from ge_backend.errors import ConfigError

__all__ = ["register"]

DESCRIPTION = """\
Sets in a model's config.pbtxt what a preset names, and says what it changes and why; comments and
everything else stay. Another preset undoes what the one before has set.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "preset", help="configure a model for a purpose", description=DESCRIPTION
    )
    parser.add_argument(
        "model", type=Path, metavar="MODEL", nargs="?", help="the folder of a model"
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help=", ".join(PRESETS))
    parser.add_argument("--list", action="store_true", help="print what each preset sets, and why")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    parser.set_defaults(func=preset)


def preset(arguments: argparse.Namespace) -> int:
    """Apply a preset, or list them; return 0.

    Raises:
        ConfigError: there is no such preset, or the model cannot be read or takes none.
    """
    if arguments.list:
        print("\n".join(presets_text()))
        return 0
    if arguments.model is None or arguments.name is None:
        raise ConfigError("expected a model's folder and the name of a preset, or --list")
    if arguments.name not in PRESETS:
        raise ConfigError(f"preset {arguments.name!r} is unknown; known are {', '.join(PRESETS)}")
    refuse_ensemble(read_document(arguments.model.resolve()))
    folder = read_folder(arguments.model)
    config = folder.config(os.environ)
    presets = TEXT_PRESETS if is_checkpoint(folder.directory) else PRESETS
    if config.engine == VLLM:
        raise ConfigError(
            f"model {folder.document['name']!r} is run by vLLM, which has settings of its own; set "
            "vllm.<argument> by hand (docs/generation.md)"
        )
    chosen = presets[arguments.name]
    found = changes_of(chosen, folder.document, config)
    diff = apply_settings(folder.config_file, found.settings, dry_run=arguments.dry_run)
    print("\n".join(changes_text(chosen, folder.document["name"], found)))
    if diff:
        print(f"\n{diff}")
    return 0
