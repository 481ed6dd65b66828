"""What a model's graph is loaded from, and on which devices."""

import threading
import zipfile
from functools import partial
from types import SimpleNamespace

import pytest

from ge_backend.errors import ModelError
from ge_backend.model.config.model import MachineConfig, ModelConfig
from ge_backend.serving import connect
from ge_backend.serving.connect import (
    executor_of,
    open_fleet,
    runs_inline,
    source_of,
    tokenizer_of,
)


@pytest.mark.parametrize(("name", "told"), [("model.pt", ["x"]), ("model.pt2", [])])
def test_only_files_that_say_nothing_are_told_what_is_declared(tmp_path, name, told):
    """Two models with other names for the tensors of one file share it where it says them itself."""
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr("m/constants.pkl", b"")
    config = {"name": "m", "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}]}
    ours = ModelConfig.read(config, directory=tmp_path, version="1", environment={})
    assert [spec.name for spec in source_of(ours, "cpu").declared.inputs] == told


@pytest.mark.parametrize(
    ("files", "named", "found"),
    [
        (("tokenizer.json",), "", "tokenizer.json"),
        (("tokenizer.json", "model.onnx"), "", ""),
        (("my.tokenizer.json", "model.onnx"), "my.tokenizer.json", "my.tokenizer.json"),
        ((), "", ""),
    ],
)
def test_a_tokenizer_is_a_model_whose_file_is_one(tmp_path, files, named, found):
    """One beside a graph is none."""
    for name in files:
        (tmp_path / name).touch()
    config = {"name": "m", "default_model_filename": named}
    ours = ModelConfig.read(config, directory=tmp_path, version="1", environment={})
    assert tokenizer_of(ours) == (tmp_path / found if found else None)


DEVICES = ("null:2", "null:0", "null:1")


class Opened:
    """Stands for the sessions of devices: those that were opened, and which of them are."""

    def __init__(self, monkeypatch):
        self.devices, self.left, self.failures = [], [], {}
        self.may_go_on = threading.Event()
        monkeypatch.setattr(connect, "open_session", self.open_session)

    def open_session(self, _, device, **__):
        if device != DEVICES[0]:
            self.may_go_on.wait(10)
        if device in self.failures:
            raise self.failures[device]
        self.devices.append(device)
        self.left.append(device)
        leave = partial(self.left.remove, device)
        return SimpleNamespace(device=device, reopen=None, close=leave)

    def fleet(self):
        config = SimpleNamespace(placement=SimpleNamespace(devices=DEVICES))
        return open_fleet(config, on_restart=lambda _: None)


@pytest.fixture
def opened(monkeypatch):
    return Opened(monkeypatch)


def test_a_fleets_devices_keep_their_order(opened):
    """The first one speaks for them, whichever is opened soonest."""
    opened.may_go_on.set()
    assert tuple(session.device for session in opened.fleet().sessions) == DEVICES


def test_where_one_device_fails_the_others_are_left(opened):
    """Its own error says why."""
    opened.may_go_on.set()
    opened.failures = {"null:1": ModelError("not there")}
    with pytest.raises(ModelError, match="not there"):
        opened.fleet()
    assert (set(opened.devices), opened.left) == ({"null:2", "null:0"}, [])


def test_where_no_thread_is_left_for_a_device_the_others_are_left(opened, monkeypatch):
    """The thread of another one may have opened it all the same."""
    start, started = threading.Thread.start, []

    def limited(self):
        started.append(self)
        if len(started) > 1:
            opened.may_go_on.set()
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="new thread"):
        opened.fleet()
    assert (set(opened.devices), opened.left) == (set(DEVICES), [])


@pytest.mark.parametrize(
    ("parameters", "groups", "environment", "inline"),
    [
        ({}, {}, {}, True),
        ({"executor": "process"}, {}, {}, False),
        ({}, {}, {"GE_EXECUTOR": "process"}, False),
        ({}, {"instance_group": [{"count": 2}]}, {}, False),
        ({"executor": "inline"}, {"instance_group": [{"count": 2}]}, {}, True),
        ({"device": "null"}, {}, {}, False),
        ({"device": "null", "executor": "inline"}, {}, {}, True),
        ({"lanes": "2"}, {}, {}, False),
        ({"priority": "1"}, {}, {}, False),
        ({}, {}, {"GE_WORKSPACE_POOL": "1GiB"}, False),
        ({}, {}, {"GE_WORKSPACE_POOL": "npu:0=1GiB"}, True),
        ({}, {}, {"GE_EXECUTOR_MEMORY": "1GiB"}, False),
    ],
)
def test_a_model_that_shares_nothing_runs_in_its_instance(
    tmp_path, parameters, groups, environment, inline
):
    """One instance on a CPU; what it asks of an executor that models share puts it there."""
    given = {key: {"string_value": value} for key, value in parameters.items()}
    config = ModelConfig.read(
        {"name": "m", "parameters": given, **groups},
        directory=tmp_path,
        version="1",
        environment=environment,
    )
    assert runs_inline(config, MachineConfig.read(environment, owner_pid=1)) is inline


@pytest.mark.parametrize(
    ("cores", "instances", "lanes"),
    [(1, 1, 1), (2, 1, 1), (4, 1, 1), (16, 1, 4), (2, 2, 2), (2, 8, 2)],
)
def test_an_instance_has_few_runs_at_once(monkeypatch, tmp_path, cores, instances, lanes):
    """Each on up to four cores; instances that share the cores have one each."""
    monkeypatch.setattr(connect, "usable_cores", lambda: cores)
    config = ModelConfig.read(
        {"name": "m", "instance_group": [{"count": instances}]},
        directory=tmp_path,
        version="1",
        environment={"GE_EXECUTOR": "inline"},
    )
    assert executor_of(config, "cpu").args[2] == lanes


@pytest.mark.parametrize(
    ("executor", "cores", "instances", "threads", "taken"),
    [
        ("inline", 2, 2, 0, 1),
        ("inline", 8, 2, 0, 4),
        ("inline", 2, 8, 0, 1),
        ("inline", 2, 2, 2, 2),  # it is said
        ("inline", 2, 1, 0, 0),  # left to the device
        ("process", 2, 2, 0, 0),
    ],
)
def test_instances_apart_share_the_cores(
    monkeypatch, tmp_path, executor, cores, instances, threads, taken
):
    """None sees the others' runs, so that each took all cores as if it were alone."""
    monkeypatch.setattr(connect, "usable_cores", lambda: cores)
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("m/constants.pkl", b"")
    config = ModelConfig.read(
        {
            "name": "m",
            "instance_group": [{"count": instances}],
            "parameters": {"threads": {"string_value": str(threads)}},
        },
        directory=tmp_path,
        version="1",
        environment={"GE_EXECUTOR": executor},
    )
    assert source_of(config, "cpu").threads == taken
