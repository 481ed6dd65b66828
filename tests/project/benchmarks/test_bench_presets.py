"""The benchmark of presets: what it serves."""

import json

from benchmarks.bench_presets import CONFIG, CONFIGS, write_model
from benchmarks.sleeping import write_sleeping

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
    write_model(tmp_path / "models" / "low_latency", "low_latency", write_sleeping(tmp_path))
    version = tmp_path / "models" / "low_latency" / "1"
    times = json.loads((version / "model.null").read_text())["cost_ms"]
    assert (times["1x1"], times["32x256"]) == (1.12, 1.0 + 0.12 * 32 * 256)
    assert (
        '"device" value { string_value: "null" }' in (version.parent / "config.pbtxt").read_text()
    )
