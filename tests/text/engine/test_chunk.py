"""How many prompt tokens a step has beside those who wait for their next token."""

import pytest

from ge_text.engine.chunk import ENOUGH, EVEN, FIRST, MAX_STRETCH, SMALLEST, ChunkController


def step_s(decodes, prompt_tokens):
    """A device: 10 ms, 1 ms a row, 0.5 ms a prompt token."""
    return (0.01 + 0.001 * decodes if decodes else 0.01) + 0.0005 * prompt_tokens


def added_s(decodes, prompt_tokens):
    """What prompts take of such a step."""
    return step_s(decodes, prompt_tokens) - step_s(decodes, 0)


def learned(controller, decodes=8, steps=30):
    for _ in range(steps):
        controller.observe(decodes=decodes, prompt_tokens=0, seconds=step_s(decodes, 0))
        chunk = controller.tokens(decodes)
        controller.observe(decodes=decodes, prompt_tokens=chunk, seconds=step_s(decodes, chunk))
    return controller.tokens(decodes)


@pytest.mark.parametrize("target_ms", [40, 100, 400])
def test_prompts_add_what_the_target_allows(target_ms):
    """After a few measurements a step takes the target longer than its rows alone."""
    controller = ChunkController(fixed=0, budget=4096, target_s=target_ms / 1000)
    chunk = learned(controller)
    assert added_s(8, chunk) == pytest.approx(target_ms / 1000, rel=0.1)


def test_a_target_below_what_a_few_tokens_take_does_not_stop_prompts():
    """Prompts go on in small pieces, whatever the target."""
    assert learned(ChunkController(fixed=0, budget=4096, target_s=0.001)) == SMALLEST
    assert learned(ChunkController(fixed=0, budget=8, target_s=0.001)) == 8


def test_where_nobody_waits_for_a_token_a_step_takes_its_longest():
    """Prompts alone are computed in steps as long as any, and of no fewer tokens than are enough."""
    controller = ChunkController(fixed=0, budget=4096, target_s=0.4)
    assert controller.tokens(0) == ENOUGH
    learned(controller)
    assert step_s(0, controller.tokens(0)) == pytest.approx(0.4 * MAX_STRETCH, rel=0.1)
    hurried = ChunkController(fixed=0, budget=4096, target_s=0.01)
    learned(hurried)
    assert hurried.tokens(0) == ENOUGH
    assert hurried.tokens(8) < 100


def test_the_budget_is_the_bound_of_a_fast_device():
    """Its largest step takes less than is allowed, with texts that wait for a token or without."""
    controller = ChunkController(fixed=0, budget=300, target_s=1.0)
    learned(controller)
    assert (controller.tokens(0), controller.tokens(8)) == (300, 300)


def test_the_first_chunk_is_careful():
    """Before anything is measured nobody is kept waiting long."""
    assert ChunkController(fixed=0, budget=4096, target_s=9.0).tokens(1) == FIRST
    assert ChunkController(fixed=0, budget=64, target_s=9.0).tokens(1) == 64


def test_a_fixed_chunk_is_fixed():
    """A configured number holds whatever was measured, within the budget."""
    controller = ChunkController(fixed=33, budget=64, target_s=0.001)
    learned(controller)
    assert (controller.tokens(0), controller.tokens(8)) == (33, 33)
    assert ChunkController(fixed=99, budget=64, target_s=0.001).tokens(0) == 64


def test_a_short_rest_of_a_prompt_changes_little():
    """Of three tokens mostly noise is measured; one such step does not undo what was learned."""
    controller = ChunkController(fixed=0, budget=4096, target_s=0.1)
    before = learned(controller)
    controller.observe(decodes=8, prompt_tokens=3, seconds=step_s(8, 3) + 0.02)
    assert controller.tokens(8) > 0.75 * before


@pytest.mark.parametrize("decodes", [1, 64, 400])
def test_rows_leave_as_much_for_prompts_however_many_they_are(decodes):
    """Also where decoding them alone takes longer than the target."""
    controller = ChunkController(fixed=0, budget=4096, target_s=0.1)
    assert learned(controller, decodes=decodes) == pytest.approx(0.1 / 0.0005, abs=EVEN)


@pytest.mark.parametrize("what", ["decoding", "prompt"])
def test_one_slow_step_at_the_beginning_is_soon_forgotten(what):
    """What a library does at its first use is no measure, even where prompts never cease."""
    controller = ChunkController(fixed=0, budget=4096, target_s=0.1)
    if what == "decoding":
        controller.observe(decodes=8, prompt_tokens=0, seconds=3.0)
        controller.observe(decodes=8, prompt_tokens=0, seconds=step_s(8, 0))
    controller.observe(decodes=8 * (what == "prompt"), prompt_tokens=10, seconds=3.0)
    for _ in range(40):
        chunk = controller.tokens(8)
        controller.observe(decodes=8, prompt_tokens=chunk, seconds=step_s(8, chunk))
    assert added_s(8, controller.tokens(8)) == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize(
    ("newcomers", "times"), [(0, 1), (8, 1), (10, 1.25), (12, 1.5), (1000, MAX_STRETCH)]
)
def test_many_newcomers_may_make_few_streams_wait(newcomers, times):
    """They add as many times the target as more wait for a first token than for a next one."""
    controller = ChunkController(fixed=0, budget=4096, target_s=0.1)
    learned(controller)
    chunk = controller.tokens(8, newcomers)
    assert added_s(8, chunk) == pytest.approx(0.1 * times, rel=0.1)


def test_rows_that_were_never_seen_alone_are_no_cost_of_prompts():
    """While prompts come in every step, more and more rows do not make a prompt token dearer."""
    controller = ChunkController(fixed=0, budget=4096, target_s=0.1)
    controller.observe(decodes=1, prompt_tokens=0, seconds=0.02)
    for decodes in range(2, 40):
        chunk = controller.tokens(decodes)
        seconds = 0.02 + 0.001 * (decodes - 1 + chunk)
        controller.observe(decodes=decodes, prompt_tokens=chunk, seconds=seconds)
    assert controller.token_s == pytest.approx(0.001, rel=0.05)
