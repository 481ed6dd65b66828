"""What a request costs: where our part of it goes."""

from benchmarks.bench_overhead import PARTS, SYSTEMS, parts_us, write_repository

from ge_tools.watch.readings import Reading


def test_every_system_is_served(tmp_path):
    """The plain model with its code, ours with a graph that computes nothing."""
    write_repository(tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == {system.model for system in SYSTEMS}
    assert (tmp_path / "nothing" / "1" / "model.py").is_file()
    assert (tmp_path / "ge" / "1" / "model.null").is_file()
    assert '"inline"' in (tmp_path / "ge_inline" / "config.pbtxt").read_text()


def test_parts_are_per_request():
    """Between two readings, in microseconds; nothing where nothing was asked."""
    key = (("model", "ge"),)
    spent = {(f"ge_{part}_seconds_total", key): 0.002 for part in PARTS}
    before = Reading(at_s=0.0, values={})
    after = Reading(at_s=1.0, values={("ge_requests_total", key): 100.0, **spent})
    assert parts_us(before, after, "ge")["plan"] == 20.0
    assert parts_us(before, before, "ge") == {}
