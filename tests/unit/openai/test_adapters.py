"""The adapters that the API lists."""

from ge_backend.openai.adapters import adapter_names


def write(repository, model, config='backend: "ge"'):
    (repository / model / "1").mkdir(parents=True)
    (repository / model / "config.pbtxt").write_text(config)
    return repository / model / "1"


def test_the_adapters_of_a_model_are_those_beside_its_checkpoint(tmp_path):
    """None where the model is unknown here or cannot be read: it is still served."""
    folder = write(tmp_path, "m")
    assert adapter_names([tmp_path], "m") == adapter_names([tmp_path], "n") == []
    for name in ("poet", "pirate"):
        (folder / "adapters" / name).mkdir(parents=True)
        (folder / "adapters" / name / "adapter_config.json").write_text("{}")
    assert adapter_names([tmp_path / "none", tmp_path], "m") == ["pirate", "poet"]
    (folder / "multi_lora.json").write_text("{")
    assert adapter_names([tmp_path], "m") == []
    write(tmp_path, "other", 'backend: "python"')
    assert adapter_names([tmp_path], "other") == []
