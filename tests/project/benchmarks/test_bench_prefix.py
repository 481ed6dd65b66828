"""What the prefix cache spares is measured on the same prompts, with it and without."""

import time

from benchmarks.bench_prefix import Round, lines, measure

from fakes.language_model import FakeLanguageModel
from ge_text.engine.engine import Engine
from ge_text.engine.settings import EngineSettings


def test_what_is_shared_is_counted_once_with_the_cache():
    """Both engines draw the same tokens; one computes the beginning once."""
    prompts = [(*range(8, 28), number) for number in range(30, 34)]
    computed = []
    for on in (False, True):
        engine = Engine(FakeLanguageModel(), EngineSettings(prefix_cache=on), time.monotonic)
        seen = measure(engine, prompts, 3)
        assert seen.requests == 4
        assert seen.first_s > 0
        computed.append(seen.computed)
    assert computed == [4 * 23, 4 * 23 - 3 * 20]


def test_ratios_are_of_the_two_engines_in_the_same_round():
    """The median of the rounds' ratios, not the ratio of medians."""

    def seen(first_s):
        return Round(requests=4, first_s=first_s, first_cpu_s=1, whole_cpu_s=2, computed=8)

    *_, ratio = lines([seen(2.0), seen(9.0), seen(4.0)], [seen(1.0), seen(3.0), seen(4.0)])
    assert ratio.split() == ["ratio", "2.00x", "2.00x", "1.00x", "1.00x", "1.00x"]
