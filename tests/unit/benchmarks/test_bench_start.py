"""The benchmark of start-up: the models beside ours, and its table."""

from benchmarks.bench_start import ALL, ONE, Start, lines, write_plain


def test_each_model_file_gets_a_plain_python_model(tmp_path):
    """Ensembles, which have no file, get none; labels are no model."""
    for name, file in (("a", "model.onnx"), ("words", "tokenizer.json"), ("chain", "README")):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "1" / file).touch()

    write_plain(tmp_path / "models", tmp_path / "plain")

    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == ["a", "words"]
    for name, file in (("a", "model.onnx"), ("words", "tokenizer.json")):
        version = tmp_path / "plain" / name / "1"
        assert sorted(path.name for path in version.iterdir()) == sorted(["model.py", file])
        assert 'backend: "python"' in (version.parent / "config.pbtxt").read_text()


def test_the_fastest_start_of_each_kind_counts():
    """What was not started has an empty cell."""
    way = "ge, `warmup: background`"
    starts = [
        Start(models=ONE, way=way, warm=False, ready_s=5.0, answer_s=0.5),
        Start(models=ONE, way=way, warm=False, ready_s=4.0, answer_s=0.7),
        Start(models=ONE, way=way, warm=True, ready_s=3.0, answer_s=0.1),
        Start(models=ALL, way="plain Python models", warm=False, ready_s=7.0),
    ]
    _, _, *rows = lines(starts)
    assert rows == [
        f"| {ONE} | {way} | 4.0 s | 3.0 s | 0.5 s |",
        f"| {ALL} | plain Python models | 7.0 s |  |  |",
    ]
