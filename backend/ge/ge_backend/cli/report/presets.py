"""Presets and what they change, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ge_backend.cli.model.changes import Changes
from ge_backend.cli.model.presets import (
    DEFAULTS,
    PRESETS,
    TEXT_PRESETS,
    Preset,
)
from ge_backend.cli.report.table import table

__all__ = ["changes_text", "presets_text"]


def presets_text() -> Iterator[str]:
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


def changes_text(preset: Preset, model: str, changes: Changes) -> Iterator[str]:
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
