"""The benchmark of presets: what it serves."""

from benchmarks.bench_presets import CONFIG, CONFIGS, write_model

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
