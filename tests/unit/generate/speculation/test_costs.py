"""What a draft adds to a step is measured beside a step without any."""

import pytest

from ge_backend.generate.speculation.costs import REFRESH, StepCosts


def measured(costs, rows, share, rounds=40, base_s=0.02, drafts=8):
    for _ in range(rounds):
        costs.observe(rows, 0, base_s)
        costs.observe(rows, drafts, base_s * (1 + share * drafts))
    return costs


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_the_share_is_found(share):
    """Whatever a step takes by itself, and beside batches of other sizes."""
    costs = measured(measured(StepCosts(), 1, share), 9, 0.5, base_s=0.4)
    assert costs.share(1) == pytest.approx(share, abs=0.001)
    assert costs.share(8) == pytest.approx(0.5, abs=0.001)


def test_a_slow_machine_is_no_dear_draft():
    """When everything takes twice as long the share stays what it was."""
    costs = measured(StepCosts(), 4, 0.1)
    measured(costs, 4, 0.1, base_s=0.04)
    assert costs.share(4) == pytest.approx(0.1, abs=0.02)


def test_a_stall_is_soon_forgotten():
    """One step that something else held up does not decide what follows."""
    costs = measured(StepCosts(), 1, 0.02)
    costs.observe(1, 8, 5.0)
    assert costs.share(1) < 0.25
    costs.observe(1, 0, 5.0)
    measured(costs, 1, 0.02, rounds=20)
    assert costs.share(1) == pytest.approx(0.02, abs=0.01)


def test_a_step_without_drafts_comes_first_and_again():
    """Nothing is compared with what was never measured, or long ago."""
    costs = StepCosts()
    costs.observe(3, 4, 0.1)
    assert not costs.is_known(3)
    assert costs.share(3) is None
    costs.observe(3, 0, 0.1)
    for _ in range(REFRESH):
        assert costs.is_known(3)
        costs.observe(3, 4, 0.1)
    assert not costs.is_known(3)
    assert not costs.is_known(4)
    costs.observe(3, 0, 0.1)
    assert costs.is_known(3)
