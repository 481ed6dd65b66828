"""What `ge-backend tune` found, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ge_backend.serving.learning.regrid import MIN_SAVING
from ge_tools.model.applied import how_to_use
from ge_tools.model.pbtxt import parameter_line
from ge_tools.model.proposal import Option, Proposal
from ge_tools.report.table import table

__all__ = ["Tuning", "tuning_json", "tuning_text"]

ANY_SHAPE = (
    "note: here this engine runs any shape: rows are padded to the longest of their run, or not at",
    "      all, and never to a bucket; the figures are of an engine that needs static shapes",
)


ALREADY_SET = "config.pbtxt has these sizes already"
NOTHING = (
    f"nothing is applied: less than {MIN_SAVING:.0%} would be saved; with --graphs it is, "
    "whatever it saves"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The proposals for a model.

    Attributes:
        source: the file that the traffic comes from.
        measured: costs are nanoseconds; else elements.
        static_shapes: the engine runs only in buckets.
        any_shape: no row is padded to a bucket here: sizes are only points to measure, which belong
            where traffic is, whatever a run costs there. So `learn: serve` decides, too.
        left_out: rows longer than the graph allows.
    """

    model: str
    source: str
    measured: bool
    static_shapes: bool
    any_shape: bool
    left_out: int
    proposals: tuple[Proposal, ...]

    def parameters(self) -> dict[str, str]:
        """Return the parameters that set the proposed sizes."""
        return {
            f"buckets.{proposal.axis}": ",".join(map(str, proposal.best.boundaries))
            for proposal in self.proposals
        }

    def worthwhile(self) -> dict[str, str]:
        """Return those of the parameters that save enough to be set, as `learn: serve` has it."""
        pays = {f"buckets.{proposal.axis}" for proposal in self.proposals if proposal.pays}
        return {name: value for name, value in self.parameters().items() if name in pays}


def tuning_text(tuning: Tuning, diff: str | None) -> list[str]:
    """Return the proposals for a person; `diff` is what was applied, None if nothing was to be."""
    lines = [f"model {tuning.model}: traffic from {tuning.source}", f"costs: {_basis(tuning)}"]
    if tuning.left_out:
        lines.append(f"left out: {tuning.left_out} rows, longer than the graph allows")
    if tuning.any_shape:
        lines += ANY_SHAPE
    for proposal in tuning.proposals:
        lines += ["", *_axis_lines(proposal, measured=tuning.measured)]
    lines.append("")
    if diff is None:
        return [*lines, *_settings(tuning)]
    if not diff:
        same = all(p.best.boundaries == p.now.boundaries for p in tuning.proposals)
        return [*lines, ALREADY_SET] if same else [*lines, *_settings(tuning), "", NOTHING]
    return [*lines, diff, how_to_use(tuning.model)]


def _settings(tuning: Tuning) -> list[str]:
    return [parameter_line(*item) for item in tuning.parameters().items()]


def _basis(tuning: Tuning) -> str:
    if tuning.measured:
        return "measured on this machine by an earlier warm-up"
    if tuning.any_shape:
        return "elements: here sizes are points to measure, which belong where traffic is"
    return (
        "elements: none were measured here for this model file; start it once, or run "
        "`ge-backend buckets --model … --measure`"
    )


def tuning_json(tuning: Tuning, diff: str | None) -> str:
    """Return the same as one JSON object."""
    return json.dumps(
        {
            "model": tuning.model,
            "source": tuning.source,
            "cost_unit": "ns" if tuning.measured else "elements",
            "static_shapes": tuning.static_shapes,
            "left_out": tuning.left_out,
            "axes": {proposal.axis: _axis_json(proposal) for proposal in tuning.proposals},
            "parameters": tuning.parameters(),
            "diff": diff,
        }
    )


def _axis_lines(proposal: Proposal, *, measured: bool) -> list[str]:
    points = proposal.traffic.points()
    mean = proposal.now.expected.real
    title = (
        f"{proposal.axis}: {proposal.traffic.total} rows of size {points[0][0]} to "
        f"{proposal.traffic.largest}, {mean:.1f} on average"
    )
    if proposal.beyond:
        title += f"; {proposal.beyond:.1%} are beyond the largest bucket, and count as not padded"
    unit = "us/row" if measured else "cost/row"
    header = ("", "sizes", "padding", "elements/row", unit, "saved", "boundaries")
    others = sorted([proposal.best, *proposal.others], key=lambda option: len(option.boundaries))
    rows = [_row("now", proposal, proposal.now, measured=measured)]
    for option in others:
        label = "proposed" if option is proposal.best else ""
        rows.append(_row(label, proposal, option, measured=measured))
    none = Option(boundaries=(), expected=proposal.unpadded)
    rows.append(("no padding", "", *_row("", proposal, none, measured=measured)[2:]))
    return [title, *table(header, rows, left=1)]


def _row(label: str, proposal: Proposal, option: Option, *, measured: bool) -> tuple[str, ...]:
    expected = option.expected
    return (
        label,
        str(len(option.boundaries)),
        f"{expected.padding:.1%}",
        f"{expected.padded:.1f}",
        f"{expected.cost / 1e3:.2f}" if measured else f"{expected.cost:.1f}",
        "" if option is proposal.now else f"{proposal.saved(option):.1%}",
        ",".join(map(str, option.boundaries)),
    )


def _axis_json(proposal: Proposal) -> dict[str, Any]:
    return {
        "rows": proposal.traffic.total,
        "beyond": proposal.beyond,
        "now": _option_json(proposal, proposal.now),
        "proposed": _option_json(proposal, proposal.best),
        "others": [_option_json(proposal, option) for option in proposal.others],
    }


def _option_json(proposal: Proposal, option: Option) -> dict[str, Any]:
    return {
        "boundaries": option.boundaries,
        "padding": option.expected.padding,
        "elements_per_row": option.expected.padded,
        "cost_per_row": option.expected.cost,
        "saved": proposal.saved(option),
    }
