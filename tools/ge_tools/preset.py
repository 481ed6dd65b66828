"""`ge-backend preset`: settings that belong together, for a purpose, written into a model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ge_backend.errors import ConfigError
from ge_backend.kinds import TEXT, kind_of
from ge_backend.model.config.model_folder import read_document, read_folder
from ge_backend.model.config.settings import VLLM
from ge_tools.model.applied import apply_settings
from ge_tools.model.changes import Changes, changes_of, refuse_ensemble
from ge_tools.model.presets import DEFAULTS, PRESETS, TEXT_PRESETS, Preset
from ge_tools.report.table import table

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
        print("\n".join(_presets_text()))
        return 0
    if arguments.model is None or arguments.name is None:
        raise ConfigError("expected a model's folder and the name of a preset, or --list")
    if arguments.name not in PRESETS:
        raise ConfigError(f"preset {arguments.name!r} is unknown; known are {', '.join(PRESETS)}")
    refuse_ensemble(read_document(arguments.model.resolve()))
    folder = read_folder(arguments.model)
    config = folder.config(os.environ)
    presets = TEXT_PRESETS if kind_of(config) is TEXT else PRESETS
    if config.engine == VLLM:
        raise ConfigError(
            f"model {folder.document['name']!r} is run by vLLM, which has settings of its own; set "
            "vllm.<argument> by hand (docs/generation.md)"
        )
    chosen = presets[arguments.name]
    found = changes_of(chosen, folder.document, config)
    diff = apply_settings(folder.config_file, found.settings, dry_run=arguments.dry_run)
    print("\n".join(_changes_text(chosen, folder.document["name"], found)))
    if diff:
        print(f"\n{diff}")
    return 0


def _presets_text() -> Iterator[str]:
    """Yield what the presets are for most models, then what for those that generate text."""
    yield from _table_text(PRESETS)
    yield ""
    yield "Models that generate text:"
    yield from _table_text(TEXT_PRESETS)


def _table_text(presets: Mapping[str, Preset]) -> Iterator[str]:
    """Yield a table of presets, then for each whom it is for, and its reasons."""
    keys = next(iter(presets.values())).choices
    rows = [
        (*(preset.choices[key].value for preset in presets.values()), DEFAULTS[key], key)
        for key in keys
    ]
    yield from table((*presets, "default", "setting"), rows, left=1)
    for preset in presets.values():
        yield ""
        yield f"{preset.name}: {preset.whom}"
        for key, choice in preset.choices.items():
            yield f"  {key}: {choice.value}, {choice.why}"
        if preset.hint:
            yield f"  {preset.hint}"


def _changes_text(preset: Preset, model: str, changes: Changes) -> Iterator[str]:
    """Yield what a preset changes in a model, what it leaves out, and what helps beside it."""
    yield f"{model}: {preset.name}, {_count(len(changes.made))}"
    if changes.made:
        rows = [(c.before, c.after, c.key, c.why) for c in changes.made]
        yield from table(("before", "after", "setting", "why"), rows, left=2)
    for key, why in changes.left_out.items():
        yield f"left out: {key}: {why}"
    for note in changes.notes:
        yield f"note: {note}"
    if preset.hint:
        yield f"hint: {preset.hint}"


def _count(number: int) -> str:
    return {0: "nothing to change", 1: "1 change"}.get(number, f"{number} changes")
