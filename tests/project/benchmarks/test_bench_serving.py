"""What the serving benchmark runs, by its options."""

from types import SimpleNamespace

import pytest

pytest.importorskip("demo.encoder")

from benchmarks import bench_serving
from benchmarks.client import BenchmarkError


def settings(*arguments):
    return bench_serving._settings(bench_serving._parse(list(arguments)))


def test_a_quick_run_is_one_mix_at_two_loads():
    """In two rounds of short windows; what it does not decide may be said."""
    quick = settings("--quick", "--seed", "7", "--protocol", "grpc")
    assert (quick.mixes, quick.concurrencies, quick.rounds) == (("lognormal",), (1, 32), 2)
    assert (quick.measure_s, quick.brief, quick.seed, quick.protocol) == (1.0, True, 7, "grpc")


def test_a_whole_run_is_all_mixes_unless_told():
    """And what is told counts."""
    whole = settings()
    assert (whole.mixes, whole.rounds, whole.measure_s) == (("lognormal", "uniform"), 3, 2.0)
    assert whole.concurrencies == (1, 8, 32, 64)
    told = settings("--mix", "uniform", "--concurrency", "4", "--rounds", "1", "--window", "0.5")
    assert (told.mixes, told.concurrencies, told.rounds) == (("uniform",), (4,), 1)
    assert (told.measure_s, told.brief) == (0.5, False)


@pytest.mark.parametrize(
    "option", [("--mix", "uniform"), ("--rounds", "3"), ("--concurrency", "8"), ("--window", "2")]
)
def test_a_quick_run_refuses_what_it_would_ignore(option, capsys):
    """Even where it is what a whole run has by default."""
    with pytest.raises(SystemExit, match="2"):
        settings("--quick", *option)
    assert f"--quick decides {option[0]} itself" in capsys.readouterr().err


def test_what_was_measured_is_kept_where_requests_at_random_fail(monkeypatch):
    """Closed loops take a quarter of an hour."""
    written = []
    error = BenchmarkError("1 of 2 requests were refused")
    monkeypatch.setattr("sys.argv", ["bench_serving", "--mix", "uniform"])
    monkeypatch.setattr(bench_serving, "run", lambda *_: ([], [], error))
    monkeypatch.setattr(bench_serving, "_write", lambda *given: written.append(given))
    with pytest.raises(BenchmarkError, match="were refused"):
        bench_serving.main()
    assert len(written) == 1


def test_a_ratio_that_has_gone_is_not_as_expected(monkeypatch, capsys):
    """A system that is no longer served would pass otherwise."""
    monkeypatch.setattr(bench_serving, "expected_of", lambda *_: {"a": 1.0, "b": 2.0})
    monkeypatch.setattr(bench_serving, "ratios", lambda found: found)
    bench_serving._compare("onnx", "Xeon", {"a": 1.0, "c": 9.0}, keep_it=False)
    assert capsys.readouterr().out == "gone: b: expected 2.00x\n"
    bench_serving._compare("onnx", "Xeon", {"a": 1.0, "b": 2.1, "c": 9.0}, keep_it=False)
    assert capsys.readouterr().out == "onnx: 2 ratios are as expected\n"


@pytest.mark.parametrize("further", [("--device", "cuda:0"), ("--encoder", "bert-base")])
def test_onnx_is_compared_on_the_cpu_alone(further, capsys):
    """The rivals would stay there, and encoders of random weights have no such file."""
    with pytest.raises(SystemExit):
        settings("--engine", "onnx", *further)
    assert "say --engine torch or torch-bf16" in capsys.readouterr().err
    assert settings("--engine", "torch-bf16", *further).bare == ("--device" in further)


@pytest.mark.parametrize(("others", "compared"), [(0.1, 1), (0.9, 0)])
def test_a_quick_run_on_a_busy_machine_compares_nothing(monkeypatch, capsys, others, compared):
    """Ratios of systems that take turns are still off by more than what a change moves."""
    seen = []
    found = [SimpleNamespace(mix="lognormal", others_cpu=cores) for cores in (0.0, others)]
    monkeypatch.setattr("sys.argv", ["bench_serving", "--quick"])
    monkeypatch.setattr(bench_serving, "run", lambda *_: (found, [], None))
    monkeypatch.setattr(bench_serving, "_compare", lambda *given, **_: seen.append(given))
    for name in ("table", "verdicts", "aims", "_write"):
        monkeypatch.setattr(bench_serving, name, lambda *_, **__: [])
    bench_serving.main()
    assert len(seen) == compared
    assert ("other programs used 0.9 cores" in capsys.readouterr().out) == (not compared)
