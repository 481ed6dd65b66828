"""The benchmark of presets: what it serves, and what it makes of its answers."""

import json

import pytest
from benchmarks.bench_presets import CONFIG, CONFIGS, write_model
from benchmarks.pool import load_pools
from benchmarks.preset_report import Memory, Window, memory_lines, speed_lines
from benchmarks.sleeping import sleeping_traffic

from ge_tools.model.presets import PRESETS


def test_each_model_is_the_plain_one_with_a_preset_applied(tmp_path):
    """The plain one is as it is written; the others have their preset's values."""
    (tmp_path / "model.onnx").touch()
    for config in CONFIGS:
        write_model(tmp_path / config, config, {"model.onnx": tmp_path / "model.onnx"})
    texts = {config: (tmp_path / config / "config.pbtxt").read_text() for config in CONFIGS}
    assert texts["plain"] == CONFIG
    for name, preset in PRESETS.items():
        count = preset.choices["instance_group.count"].value
        assert f"count: {count} kind" in texts[name]
        size = preset.choices["max_queue_size"].value
        assert (f'"max_queue_size" value {{ string_value: "{size}" }}' in texts[name]) == (
            size != "0"
        )


def test_runs_that_sleep_need_no_encoder(tmp_path):
    """The null device serves a graph whose longest and largest runs have their own times."""
    traffic = sleeping_traffic("lognormal", 1, tmp_path)
    write_model(tmp_path / "models" / "low_latency", "low_latency", traffic.encoder)
    version = tmp_path / "models" / "low_latency" / "1"
    times = json.loads((version / "model.null").read_text())["cost_ms"]
    assert (times["1x1"], times["32x256"]) == (1.12, 1.0 + 0.12 * 32 * 256)
    assert (
        '"device" value { string_value: "null" }' in (version.parent / "config.pbtxt").read_text()
    )
    assert max(map(len, load_pools(traffic.pools)["lognormal"].rows)) <= 256


def window(config, number, answers):
    return Window(
        config=config,
        load="1 in flight",
        round_number=number,
        answers=answers,
        p50_ms=1000 / answers,
        p99_ms=2000 / answers,
        refused=0.25,
        others_cpu=0.0,
    )


def test_ratios_are_taken_within_a_round():
    """A machine that was twice as fast in one round changes no ratio."""
    rounds = ((0, 100), (1, 200), (2, 400))
    windows = [window("plain", number, rate) for number, rate in rounds]
    windows += [window("low_latency", number, 2 * rate) for number, rate in rounds]
    _, _, plain, preset = speed_lines(windows)
    assert plain == "| 1 in flight | plain | 200 (1.00x) | 5.0 (1.00x) | 10.0 (1.00x) | 25% |"
    assert preset == (
        "| 1 in flight | low_latency | 400 (2.00x) | 2.5 (0.50x) | 5.0 (0.50x) | 25% |"
    )


def test_a_round_that_plain_has_not_is_no_comparison():
    """Two that share no round cannot be compared."""
    with pytest.raises(ValueError, match="share no round"):
        list(speed_lines([window("plain", 0, 1), window("low_latency", 1, 1)]))


def test_memory_is_compared_with_the_plain_configuration():
    """The executor's, and that of all processes together."""
    mib = 1 << 20
    found = [
        Memory(config="plain", bytes_by_role={"executor": 200 * mib, "stub": 50 * mib}),
        Memory(config="small", bytes_by_role={"executor": 50 * mib, "stub": 50 * mib}),
    ]
    assert list(memory_lines(found))[2:] == [
        "| plain | 200 (1.00x) | 250 (1.00x) |",
        "| small | 50.0 (0.25x) | 100 (0.40x) |",
    ]
