"""The benchmark of start-up: the models beside ours, and its table."""

from benchmarks.bench_start import ALL, ONE, Start, lines, num_measured, write_plain


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
        Start(models=ONE, way=way, warm=False, ready_s=5.0, answer_s=0.5, settled_s=9, measured=25),
        Start(models=ONE, way=way, warm=False, ready_s=4.0, answer_s=0.7, settled_s=8, measured=25),
        Start(models=ONE, way=way, warm=True, ready_s=3.0, answer_s=0.1, settled_s=3.5, measured=0),
        Start(models=ALL, way="plain Python models", warm=False, ready_s=7.0),
    ]
    _, _, *rows = lines(starts)
    assert rows == [
        f"| {ONE} | {way} | 4.0 s | 3.0 s | 8.0 s | 3.5 s | 25 | 0 | 0.5 s |",
        f"| {ALL} | plain Python models | 7.0 s |  |  |  |  |  |  |",
    ]


def test_only_what_was_measured_is_counted():
    """As `serving/warmup/warmup.py` logs it: not what was prepared, or measured for another instance."""
    log = """
    I1122 logs.py:31] "ge ge: warm-up 1/3 rows=16 sequence=256 2110.5 ms, 14.0 GiB free"
    I1122 logs.py:31] "ge ge: warm-up 2/3 rows=8 sequence=256 prepared, 14.0 GiB free"
    I1122 logs.py:31] "ge ge: warm-up 3/3 rows=1 2.1 ms (measured before), 14.0 GiB free"
    I1122 logs.py:31] "ge ge: warm-up took 14.9 s"
    """
    assert num_measured(log) == 1
