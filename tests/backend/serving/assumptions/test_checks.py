"""How an assumption is tested: verdicts, and why there is none."""

import logging
import types
from dataclasses import replace

import pytest

from ge_backend.errors import InvalidRequest
from ge_backend.serving.assumptions.checks import by_difference, checked, differences, in_time
from ge_backend.serving.assumptions.findings import Findings
from ge_backend.serving.assumptions.lengths import Lengths
from ge_backend.serving.assumptions.trial import OutOfTime, Untestable
from ge_backend.serving.warmup.verdict import FAILS, HOLDS, LATE, NOT_TESTED, TAKEN, Verdict
from ge_backend.tensors import Signature

NOTHING = types.SimpleNamespace(assume=frozenset())
SIGNATURE = Signature(inputs=(), outputs=(), axis_limits={})
KNOWN = Findings(signature=SIGNATURE, lengths=Lengths(inputs=(), batch="n"))


def fails(lengths):
    raise Untestable("there is no time")


def test_what_is_taken_as_given_is_not_tested():
    """Nor is anything where no lengths are known, for the same reason as those."""
    taken = checked("rows", types.SimpleNamespace(assume={"rows"}), KNOWN, fails)
    assert (taken.verdict, taken.tested) == (TAKEN, "the parameter 'assume' names it")
    why = Verdict(assumption="axes", tested="it takes texts", figure="", verdict=NOT_TESTED)
    unknown = checked("rows", NOTHING, Findings(signature=SIGNATURE, verdicts=(why,)), fails)
    assert (unknown.verdict, unknown.tested) == (NOT_TESTED, "it takes texts")
    unknown = checked(
        "rows",
        NOTHING,
        Findings(signature=SIGNATURE, verdicts=(replace(why, verdict=LATE),)),
        fails,
    )
    assert (unknown.verdict, "assume: rows" in unknown.line()) == (LATE, True)


def test_a_test_that_finds_nothing_out_says_why():
    """It stops no start."""
    found = checked("rows", NOTHING, KNOWN, fails)
    assert (found.assumption, found.verdict, found.tested) == (
        *("rows", NOT_TESTED),
        "there is no time",
    )


@pytest.mark.parametrize("error", [Untestable("so"), InvalidRequest("so")])
def test_a_sample_that_cannot_be_compared_is_left_out(caplog, error):
    """The log says so; the others count."""

    def differs(given):
        if given:
            raise error
        return 0.5, "off"

    with caplog.at_level(logging.WARNING):
        assert list(differences([0, 1, 0], differs, "not compared")) == [(0.5, "off")] * 2
    assert caplog.messages == ["not compared: so"]


@pytest.mark.parametrize("found", [[], [(0.1, "")], [(0.1, ""), (0.5, "off")]])
def test_where_time_runs_out_one_difference_is_enough(found):
    """Where there was none yet nothing is known."""

    def differ():
        yield from found
        raise OutOfTime

    if not any(text for _, text in found):
        with pytest.raises(OutOfTime):
            list(in_time(differ()))
    else:
        assert list(in_time(differ())) == found


def test_a_text_of_a_difference_is_what_fails():
    """The figure of what holds is the difference; samples that were used are named."""
    wrong = by_difference("rows", "two rows", (), (0.5, "'y' differs"), "each alone")
    right = by_difference("rows", "two rows", ("one", "two"), (0.001, ""), "each alone", "masked")
    assert (wrong.verdict, wrong.figure, wrong.consequence) == (FAILS, "'y' differs", "each alone")
    assert (right.verdict, right.figure, right.consequence) == (HOLDS, "0.001", "masked")
    assert wrong.tested == "two rows"
    assert right.tested == "two rows, also with 2 samples of the model"
