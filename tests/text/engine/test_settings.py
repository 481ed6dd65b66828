"""The limits of an engine."""

from pathlib import Path

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.config.settings import GENERATION_SETTINGS
from ge_text.engine.settings import EngineSettings, SpeculationMode, read_settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; expected at least 1"),
        ({"max_num_batched_tokens": 7, "max_num_seqs": 8}, "expected at least 8 (max_num_seqs)"),
        ({"prefill_chunk": -1}, "prefill_chunk is -1"),
        ({"block_size": 0}, "block_size is 0"),
        ({"kv_cache_bytes": -1}, "kv_cache_bytes is -1"),
        ({"max_waiting_requests": 0}, "max_waiting_requests is 0"),
        ({"swap_bytes": -1}, "swap_bytes is -1"),
        ({"itl_target_ms": 0}, "itl_target_ms is 0; expected more than 0"),
        ({"aging_s": float("nan")}, "aging_s is nan"),
        ({"speculation": SpeculationMode.MODEL}, "is 'model' and speculative_model is ''"),
        ({"speculative_model": Path("d")}, "is 'off' and speculative_model is 'd'"),
    ],
)
def test_limits_that_cannot_work_are_refused(given, message):
    """A step has room for a token of every sequence, and nothing is less than it can be."""
    with pytest.raises(ConfigError) as caught:
        EngineSettings(**given)
    assert message in str(caught.value)


def test_parameters_are_read_by_name():
    """Texts become numbers; `auto` is the engine's own choice; buckets stay texts."""
    texts = {setting.key: setting.default for setting in GENERATION_SETTINGS}
    assert read_settings(texts) == EngineSettings()
    given = {
        "prefill_chunk": "64",
        "kv_cache_bytes": "2MiB",
        "kv_cache_dtype": "bf16",
        "stream_interval": "8",
        "scheduling": "sjf",
        "preemption": "swap",
        "swap_bytes": "1KiB",
        "itl_target_ms": "50.5",
        "prefix_cache": "off",
        "speculation": "ngram",
        "num_speculative_tokens": "4",
        "lora_bytes": "3MiB",
        "buckets.query": "16,32",
    }
    read = read_settings({**texts, **given})
    assert (read.prefill_chunk, read.kv_cache_bytes, read.swap_bytes) == (64, 2 << 20, 1 << 10)
    assert (EngineSettings().stream_interval, read.stream_interval) == (1, 8)
    assert (EngineSettings().kv_cache_dtype, read.kv_cache_dtype) == ("model", "bf16")
    assert (read.scheduling.value, read.preemption.value) == ("sjf", "swap")
    assert (read.prefix_cache, read.lora_bytes) == (False, 3 << 20)
    assert (read.speculation, read.draft_lengths) == (SpeculationMode.NGRAM, (4,))
    by_model = read_settings({**texts, "speculation": "model", "speculative_model": "/m/draft"})
    assert by_model.speculative_model == Path("/m/draft")
    measured = read_settings({**texts, "speculation": "ngram"})
    assert (EngineSettings().draft_lengths, measured.draft_lengths) == ((), (1, 3, 7, 15))
    assert (read.itl_target_ms, read.query_buckets, read.bucketed) == (50.5, "16,32", True)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("max_num_seqs", "many"),
        ("prefill_chunk", "-1"),
        ("prefill_chunk", "0"),
        ("num_speculative_tokens", "0"),
        ("itl_target_ms", "x"),
        ("swap_bytes", "1 x"),
    ],
)
def test_what_cannot_be_read_is_named(key, text):
    """The error has the key and the text."""
    texts = {setting.key: setting.default for setting in GENERATION_SETTINGS}
    with pytest.raises(ConfigError, match=f"{key}.*{text}"):
        read_settings({**texts, key: text})
