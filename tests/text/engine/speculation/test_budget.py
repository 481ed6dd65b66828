"""What trials cost is a small share of all time, unless they have gained it."""

from ge_text.engine.speculation.budget import DEBT, FIRST, MOST, SHARE, SpeculationBudget


def spent(budget, steps, loss):
    """Return how many of these steps lost that much, each as soon as it was allowed to."""
    lost = 0
    for _ in range(steps):
        tries = budget.for_trials
        lost += tries
        budget.take(-loss if tries else 0.0)
    return lost


def test_trials_without_a_gain_cost_a_share_of_the_time():
    """However much each of them costs."""
    for loss in (0.3, 3.0, 7.0):
        steps = 5000
        assert spent(SpeculationBudget(), steps, loss) * loss <= FIRST + SHARE * steps + loss
        assert spent(SpeculationBudget(), steps, loss) * loss >= 0.9 * SHARE * steps


def test_what_was_gained_may_be_spent_up_to_a_limit():
    """Past gains pay no endless losses."""
    budget = SpeculationBudget()
    for _ in range(1000):
        budget.take(2.0)
    assert spent(budget, 500, 1.0) <= MOST + SHARE * 500 + 1


def test_guesses_go_on_when_trials_may_not():
    """But not for ever, where what seemed worth it is not."""
    budget = SpeculationBudget()
    while budget.for_trials:
        assert budget.for_guesses
        budget.take(-1.0)
    assert budget.for_guesses
    for _ in range(int(DEBT) + 1):
        budget.take(-1.0)
    assert not budget.for_guesses
    for _ in range(int(2 / SHARE)):
        budget.take(0.0)
    assert budget.for_guesses


def test_one_stall_is_no_verdict():
    """A step that something else held up for long counts as a few."""
    budget = SpeculationBudget()
    budget.take(-1000.0)
    for _ in range(int(8 / SHARE)):
        budget.take(0.0)
    assert budget.for_trials
