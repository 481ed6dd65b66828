import json
import logging
import multiprocessing
import os
from pathlib import Path

import pytest

from builders.histograms import histogram_of
from ge_backend.errors import ConfigError
from ge_backend.serving.warmup.store import Store
from ge_backend.shapes.traffic.histogram import SizeHistogram

COSTS = {(1, 16): 1000.0, (8, 512): 2e6}
KEY = ["model.onnx", "cpu"]


def files_of(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


def test_costs_come_back_under_their_key_only(tmp_path):
    """A cost depends on everything in its key, so another key has none."""
    store = Store(tmp_path / "cache")
    assert store.costs(KEY) == {}
    store.keep_costs(KEY, COSTS)
    assert Store(tmp_path / "cache").costs(KEY) == COSTS
    assert store.costs([*KEY, "x"]) == {}
    assert store.costs(["model.onnx\ncpu"]) == {}
    store.keep_costs(KEY, {(1,): 5.0})
    assert store.costs(KEY) == {(1,): 5.0}


@pytest.mark.parametrize(
    "change",
    [
        lambda document: "",
        lambda document: "[1]",
        lambda document: json.dumps({**document, "costs": [[[1], "fast"]]}),
        lambda document: json.dumps({**document, "costs": [[[1], float("nan")]]}),
        lambda document: json.dumps({**document, "costs": [[[1], -1.0]]}),
        lambda document: json.dumps({**document, "costs": [[[1], 0]]}),
        lambda document: json.dumps({**document, "costs": [[[1], 1.0], [[1, 2], 1.0]]}),
        lambda document: json.dumps({**document, "costs": [[[float("inf")], 1.0]]}),
        lambda document: json.dumps({**document, "costs": 7}),
        lambda document: "\udcff",
    ],
)
def test_a_broken_file_of_costs_is_measured_anew(tmp_path, caplog, change):
    """The start goes on as if there was none, and says so."""
    store = Store(tmp_path)
    store.keep_costs(KEY, COSTS)
    (path,) = files_of(tmp_path)
    path.write_text(change(json.loads(path.read_text())), errors="surrogateescape")
    with caplog.at_level(logging.WARNING):
        assert store.costs(KEY) == {}
    assert str(path) in caplog.text


def test_costs_of_another_version_are_not_used(tmp_path):
    """They may mean something else; the next start replaces them."""
    store = Store(tmp_path)
    store.keep_costs(KEY, COSTS)
    (path,) = files_of(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 0}))
    assert store.costs(KEY) == {}


def test_traffic_adds_up(tmp_path):
    """What instances, and starts, count goes into one record per model."""
    store = Store(tmp_path)
    assert store.traffic("m") == {}
    store.add_traffic("m", {"rows": histogram_of({4: 1}), "length": histogram_of({5: 4})})
    Store(tmp_path).add_traffic(
        "m", {"length": histogram_of({5: 1, 9: 2}), "other": SizeHistogram()}
    )
    store.add_traffic("n", {"length": histogram_of({1: 1})})
    traffic = store.traffic("m")
    assert traffic["rows"].points() == [(4, 1)]
    assert traffic["length"].points() == [(5, 5), (9, 2)]
    assert traffic["other"].points() == []


@pytest.mark.parametrize("content", [b"no json", b"\xff\xfe", b'{"version": 0}'])
def test_a_broken_record_is_an_error_to_read_and_replaced_by_counting(tmp_path, caplog, content):
    """A person who tunes is told; serving goes on with a new record."""
    store = Store(tmp_path)
    store.add_traffic("m", {"length": histogram_of({5: 1})})
    store.traffic_path("m").write_bytes(content)
    with pytest.raises(ConfigError, match=r"m\.json"):
        store.traffic("m")
    with caplog.at_level(logging.WARNING):
        store.add_traffic("m", {"length": histogram_of({6: 1})})
    assert "m.json" in caplog.text
    assert store.traffic("m")["length"].points() == [(6, 1)]


def count_often(directory, size):
    for _ in range(20):
        Store(directory).add_traffic("m", {"length": histogram_of({size: 1})})


def test_processes_do_not_overwrite_each_other(tmp_path):
    """Every instance of a model is a process that adds to the same record."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count_often, args=(tmp_path, size)) for size in (3, 4, 5)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert Store(tmp_path).traffic("m")["length"].points() == [(3, 20), (4, 20), (5, 20)]


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    """`GE_CACHE_DIR=off` writes no file anywhere."""
    monkeypatch.chdir(tmp_path)
    store = Store(None)
    store.keep_costs(KEY, COSTS)
    store.add_traffic("m", {"length": histogram_of({5: 1})})
    assert (store.costs(KEY), store.traffic("m"), store.traffic_path("m")) == ({}, {}, None)
    assert files_of(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    """Serving does not depend on it; the warning names the variable to change."""
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "cache")
    with caplog.at_level(logging.WARNING):
        store.keep_costs(KEY, COSTS)
        store.add_traffic("m", {"length": histogram_of({5: 1})})
    assert caplog.text.count("set GE_CACHE_DIR") == 2


def test_a_folder_that_may_not_be_entered_is_a_warning(tmp_path, caplog, monkeypatch):
    """As `HOME=/root` of a server that runs as another user: models load without what is there."""
    store = Store(tmp_path)

    def refused(path, *_args, **_named):
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("stat", "read_text", "mkdir"):
        monkeypatch.setattr(Path, name, refused)
    with caplog.at_level(logging.WARNING):
        assert store.costs(KEY) == {}
    assert "are not used: PermissionError(13, 'Permission denied')" in caplog.text
    with pytest.raises(ConfigError, match=r"traffic .*m\.json cannot be read: .*Permission denied"):
        store.traffic("m")
    store.add_traffic("m", {"length": histogram_of({5: 1})})
    assert "m.json is not kept" in caplog.text


def test_a_file_that_cannot_be_kept_is_said_once(tmp_path, caplog):
    """An instance adds to its traffic every ten seconds; another file, or cause, is said too."""
    (tmp_path / "traffic").write_text("")
    store = Store(tmp_path)
    for _ in range(3):
        for model in ("m", "n"):
            store.add_traffic(model, {"length": histogram_of({5: 1})})
    assert caplog.text.count("is not kept") == 2
    (tmp_path / "traffic").unlink()
    (tmp_path / "traffic" / "m.lock").mkdir(parents=True)
    store.add_traffic("m", {"length": histogram_of({5: 1})})
    assert caplog.text.count("is not kept") == 3


def test_a_full_disk_leaves_the_old_file_and_no_rest(tmp_path, caplog, monkeypatch):
    """A file is replaced whole, or stays as it is."""
    store = Store(tmp_path)
    store.keep_costs(KEY, COSTS)

    def full(*_args, **_named):
        raise OSError(28, "No space left on device")

    real = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda *args, **named: _Full(real(*args, **named), full))
    with caplog.at_level(logging.WARNING):
        store.keep_costs(KEY, {(1, 1): 1.0})
    assert "No space left" in caplog.text
    assert store.costs(KEY) == COSTS
    assert len(files_of(tmp_path)) == 1


class _Full:
    def __init__(self, file, write):
        self.file, self.write = file, write

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def test_findings_are_kept_under_their_key(tmp_path):
    """A broken file is as good as none."""
    store = Store(tmp_path)
    assert store.findings(["a"]) is None
    store.keep_findings(["a"], {"rows": True})
    assert (store.findings(["a"]), store.findings(["b"])) == ({"rows": True}, None)
    for path in (tmp_path / "findings").iterdir():
        path.write_text("{")
    assert store.findings(["a"]) is None
    assert Store(None).findings(["a"]) is None
