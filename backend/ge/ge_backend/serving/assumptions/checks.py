"""How an assumption is tested: its test's verdict, or why there is none; no test fails a start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from ge_backend.errors import GeError, InvalidRequest
from ge_backend.model.config.model import ModelConfig
from ge_backend.serving.assumptions.comparison import Difference
from ge_backend.serving.assumptions.findings import Findings
from ge_backend.serving.assumptions.lengths import Lengths
from ge_backend.serving.assumptions.samples import Sample
from ge_backend.serving.assumptions.trial import OutOfTime, Untestable
from ge_backend.serving.warmup.verdict import FAILS, HOLDS, LATE, NOT_TESTED, TAKEN, Verdict

__all__ = ["by_difference", "checked", "differences", "in_time"]

log = logging.getLogger(__name__)

# What is done where there was no time.
WITHOUT = "not relied on but where config.pbtxt says so; 'assume: {}' takes it as given"

_Given = TypeVar("_Given")


def checked(
    name: str, config: ModelConfig, known: Findings, test: Callable[[Lengths], Verdict]
) -> Verdict:
    """Return the verdict of a test, or why there is none.

    Args:
        name: of the assumption.
        config: what it takes as given is not tested.
        known: has the lengths at which the graph runs; without them nothing is tested.
        test: raises `Untestable` or a `GeError` where nothing can be found out.
    """
    untested = Verdict(assumption=name, tested="", figure="", verdict=NOT_TESTED)
    late = replace(untested, verdict=LATE, consequence=WITHOUT.format(name))
    if name in config.assume:
        return replace(untested, verdict=TAKEN, tested="the parameter 'assume' names it")
    if known.lengths is None:
        why = next(iter(known.verdicts), untested)
        return replace(late if why.late else untested, tested=why.tested)
    try:
        return test(known.lengths)
    except OutOfTime as error:
        return replace(late, tested=str(error))
    except (GeError, Untestable) as error:
        return replace(untested, tested=str(error))


def differences(
    given: Iterable[_Given], differs: Callable[[_Given], Difference], unfit: str
) -> Iterator[Difference]:
    """Yield how answers to samples differ; one that cannot be compared is left out, and logged."""
    for one in given:
        try:
            yield differs(one)
        except (InvalidRequest, Untestable) as error:
            log.warning("%s: %s", unfit, error)


def in_time(found: Iterable[Difference]) -> Iterator[Difference]:
    """Yield how answers differ as long as there is time: one that is too far off is enough.

    Raises:
        OutOfTime: there is none left, and none was too far off.
    """
    fails = False
    try:
        for off, text in found:
            fails = fails or bool(text)
            yield off, text
    except OutOfTime:
        if not fails:
            raise


def by_difference(
    name: str, how: str, samples: Sequence[Sample], found: Difference, fails: str, holds: str = ""
) -> Verdict:
    """Return the verdict that a difference is.

    Args:
        name: of the assumption.
        how: it was tested, besides with samples.
        samples: of the model, which were used.
        found: the largest difference.
        fails: what is done about it where that is one.
        holds: what is done where it is none.
    """
    worst, said = found
    more = f", also with {len(samples)} sample{'s' if len(samples) > 1 else ''} of the model"
    return Verdict(
        assumption=name,
        tested=how + (more if samples else ""),
        figure=said or f"{worst:.1g}",
        verdict=FAILS if said else HOLDS,
        consequence=fails if said else holds,
    )
