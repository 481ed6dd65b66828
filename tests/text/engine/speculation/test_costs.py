"""What a draft adds to a step is measured beside a step without any."""

import pytest

from ge_text.engine.speculation.costs import REFRESH, StepCosts


def measured(costs, rows, share, rounds=40, base_s=0.02, drafts=8):
    for _ in range(rounds):
        costs.observe(rows, 0, base_s)
        costs.observe(rows, drafts, base_s * (1 + share * drafts))
    return costs


def share(costs, rows, drafts=8):
    return (costs.time(rows, drafts) - 1) / drafts


@pytest.mark.parametrize("real", [0.0, 0.02, 0.3])
def test_the_share_is_found(real):
    """Whatever a step takes by itself, and beside batches of other sizes."""
    costs = measured(measured(StepCosts(), 1, real), 9, 0.5, base_s=0.4)
    assert share(costs, 1) == pytest.approx(real, abs=0.001)
    assert share(costs, 8) == pytest.approx(0.5, abs=0.001)


def test_few_drafts_and_many_are_apart():
    """The first one costs more than the others; more than ever tried are taken for cheaper."""
    costs = measured(measured(StepCosts(), 1, 0.4, drafts=1), 1, 0.1, drafts=8)
    assert costs.time(1, 1) == pytest.approx(1.4, abs=0.01)
    assert share(costs, 1) == pytest.approx(0.1, abs=0.01)
    assert 0.1 < share(costs, 1, 3) < 0.4
    assert 0.05 < share(costs, 1, 16) < 0.09
    assert share(costs, 1, 32) < share(costs, 1, 16)


def test_a_slow_machine_is_no_dear_draft():
    """When everything takes twice as long the share stays what it was."""
    costs = measured(StepCosts(), 4, 0.1)
    measured(costs, 4, 0.1, base_s=0.04)
    assert share(costs, 4) == pytest.approx(0.1, abs=0.02)


def test_a_stall_is_soon_forgotten():
    """One step that something else held up does not decide what follows."""
    costs = measured(StepCosts(), 1, 0.02)
    costs.observe(1, 8, 5.0)
    assert share(costs, 1) < 0.25
    costs.observe(1, 0, 5.0)
    measured(costs, 1, 0.02, rounds=20)
    assert share(costs, 1) == pytest.approx(0.02, abs=0.01)


def test_a_step_without_drafts_comes_first_and_again():
    """Nothing is compared with what was never measured, or long ago."""
    costs = StepCosts()
    costs.observe(3, 4, 0.1)
    assert not costs.is_known(3)
    assert costs.most(3, bold=True) == 0
    costs.observe(3, 0, 0.1)
    for _ in range(REFRESH):
        assert costs.is_known(3)
        costs.observe(3, 4, 0.1)
    assert costs.most(2, bold=True) == 4 * 8
    assert costs.most(2, bold=False) == 7
    assert not costs.is_known(3)
    assert not costs.is_known(4)
    costs.observe(3, 0, 0.1)
    assert costs.is_known(3)


def test_a_time_is_told_in_steps_without_drafts():
    """Of as many rows; before one was measured nothing is known."""
    costs = StepCosts()
    assert costs.in_plain_steps(3, 1.0) == 0
    costs.observe(3, 0, 0.1)
    assert costs.in_plain_steps(3, 0.25) == pytest.approx(2.5)
