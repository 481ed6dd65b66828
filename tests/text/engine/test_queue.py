"""Who is served when."""

import pytest

from builders.generation import sequence
from ge_text.engine.admission import LengthForecast
from ge_text.engine.parameters import Parameters
from ge_text.engine.queue import key_offset_s
from ge_text.engine.sequence import GenerationRequest
from ge_text.engine.settings import EngineSettings, Scheduling


def key(
    policy,
    *,
    at_s=0.0,
    number=0,
    prompt=1,
    max_output=10,
    priority=0,
    aging_s=10.0,
    limited=True,
    forecast=None,
):
    asked = Parameters(priority=priority, max_tokens=max_output if limited else None)
    request = GenerationRequest(id="r", prompt=(1,) * prompt, parameters=asked)
    settings = EngineSettings(scheduling=policy, aging_s=aging_s)
    later_s = key_offset_s(settings, forecast or LengthForecast())(request, max_output)
    return at_s + later_s, number


def test_fcfs_is_the_order_of_coming():
    """Neither length nor priority count, and who came at the same time is served in order."""
    first = key(Scheduling.FCFS, at_s=1, number=1, prompt=900, priority=50)
    assert first < key(Scheduling.FCFS, at_s=2, number=0, priority=-50)
    assert key(Scheduling.FCFS, number=1) < key(Scheduling.FCFS, number=2)


def test_sjf_counts_prompt_and_limit():
    """The shortest total goes first, among those that came at about the same time."""
    short = key(Scheduling.SJF, at_s=0.5, number=1, prompt=10, max_output=20)
    assert short < key(Scheduling.SJF, at_s=0, number=0, prompt=10, max_output=200)
    assert short < key(Scheduling.SJF, at_s=0, number=0, prompt=200, max_output=10)


def test_sjf_takes_no_limit_for_what_such_texts_are_expected_to_get():
    """A model that holds many tokens does not put a chat behind an hour of short texts."""
    chat = {"prompt": 10, "max_output": 100_000, "limited": False}
    assert key(Scheduling.SJF, **chat) == key(Scheduling.SJF, prompt=10, max_output=512)
    forecast = LengthForecast()
    for _ in range(300):
        forecast.observe(sequence(given=(1,) * 40, max_output=100_000))
    assert key(Scheduling.SJF, **chat, forecast=forecast) == key(
        Scheduling.SJF, prompt=10, max_output=40
    )
    assert key(Scheduling.SJF, prompt=10, max_output=600, forecast=forecast) == key(
        Scheduling.SJF, prompt=10, max_output=600
    )


def test_a_smaller_priority_goes_first_as_in_vllm():
    """Priority outweighs the order of coming, level by level."""
    urgent = key(Scheduling.PRIORITY, at_s=5, number=2, priority=-1)
    assert urgent < key(Scheduling.PRIORITY, at_s=0, number=1)
    assert key(Scheduling.PRIORITY, at_s=1, number=2) > key(Scheduling.PRIORITY, at_s=0, number=1)


@pytest.mark.parametrize("policy", [Scheduling.SJF, Scheduling.PRIORITY])
def test_waiting_makes_up_for_any_handicap(policy):
    """Nobody is overtaken by those who come later than his handicap in seconds: nobody starves."""
    late = {"prompt": 1, "max_output": 1, "priority": -1000}
    waiting = key(policy, at_s=0, prompt=500, max_output=500, priority=3)
    assert key(policy, at_s=9, number=1, **{**late, "priority": 2}) < waiting
    assert key(policy, at_s=10_040, number=1, **late) > waiting


def test_a_key_keeps_its_grain_on_an_old_clock():
    """Microseconds count even when the clock has run for years."""
    year = 3e7
    assert key(Scheduling.PRIORITY, at_s=year) < key(Scheduling.PRIORITY, at_s=year + 1e-6)
