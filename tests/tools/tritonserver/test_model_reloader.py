"""A model that has lost a stub is loaded anew, once, and its leftovers go."""

import json
import os
import shutil
import subprocess
import sys
import threading

import pytest

from builders.null_models import comes_true
from builders.server_http import ServerHttp
from ge_backend.executor.process.host_processes import Stub
from ge_backend.executor.process.reloads import times_reloaded
from ge_tools.tritonserver import health
from ge_tools.tritonserver import model_reloader as reloader_module
from ge_tools.tritonserver.api import ServerApi
from ge_tools.tritonserver.model_reloader import ModelReloader


class Rig:
    """A server with one model, its stubs, and who looks after them."""

    def __init__(self, folder, monkeypatch):
        self.http, self.run, self.said = ServerHttp(), folder / "run", []
        self.memory = folder / "shm"
        self.memory.mkdir()
        self.living = [self.stub(1)]
        for module in (reloader_module, health):
            monkeypatch.setattr(module, "stubs_of", lambda server: list(self.living))
        monkeypatch.setattr(reloader_module, "PERIOD_S", 0.05)
        monkeypatch.setattr(reloader_module, "CALM", 10**9)
        monkeypatch.setattr(reloader_module, "FIRST_PAUSE_S", 0.01)
        monkeypatch.setattr(reloader_module, "LONGEST_PAUSE_S", 0.02)
        monkeypatch.setattr(reloader_module, "SHARED_MEMORY", self.memory)
        self.http.models(m="READY")
        self.http.config("m", backend="ge", instance_group=[{"count": 1}])
        self.http.answers["POST", "/v2/repository/models/m/unload"] = None
        api = ServerApi("127.0.0.1", self.http.port)
        self.reloader = ModelReloader(api, 7, self.run, self.said.append)

    def stub(self, pid):
        (self.memory / f"r{pid}").touch()
        return Stub(pid=pid, models=("m",), region=f"r{pid}")

    def asked(self, what):
        return self.http.asked.count(("POST", f"/v2/repository/models/m/{what}"))


@pytest.fixture
def rig(tmp_path, monkeypatch):
    rig = Rig(tmp_path, monkeypatch)
    yield rig
    rig.reloader.close()
    rig.http.close()


def looks(rig, count=3):
    stats = ("GET", "/v2/models/stats")
    before = rig.http.asked.count(stats)
    assert comes_true(lambda: rig.http.asked.count(stats) >= before + count)


def test_a_server_that_is_well_is_left_alone(rig):
    """Nothing is loaded and nothing said."""
    looks(rig)
    assert (rig.asked("load"), rig.said) == (0, [])


def test_models_that_have_had_stubs_are_known(rig):
    """Also once these have died."""
    looks(rig)
    rig.living = []
    assert rig.reloader.stubbed() == {"m"}


def test_a_server_that_stays_well_is_not_asked_any_more(rig, monkeypatch):
    """Until a stub ends or another starts, and seldom without."""
    monkeypatch.setattr(reloader_module, "CALM", 2)
    monkeypatch.setattr(reloader_module, "REST", 10**9)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        rig.living = [Stub(pid=child.pid, models=("m",), region="r1")]
        changed = []
        real = rig.reloader._changes.any
        monkeypatch.setattr(
            rig.reloader._changes, "any", lambda: changed.append(real()) or changed[-1]
        )
        assert comes_true(lambda: len(changed) > 10 and not any(changed[-8:]))
        before = len(rig.http.asked)
        looked = len(changed)
        assert comes_true(lambda: len(changed) >= looked + 10)
        assert len(rig.http.asked) == before
        child.kill()
        rig.living = []
        assert comes_true(lambda: rig.asked("load") >= 1)
    finally:
        child.kill()
        child.wait()


def test_a_server_that_stays_well_is_looked_at_now_and_then(rig, monkeypatch):
    """What nothing has told of is found all the same."""
    monkeypatch.setattr(reloader_module, "CALM", 2)
    monkeypatch.setattr(reloader_module, "REST", 5)
    rig.living = [Stub(pid=os.getpid(), models=("m",), region="r1")]
    looks(rig, 12)
    rig.living = []
    assert comes_true(lambda: rig.asked("load") >= 1)


def test_a_model_whose_stub_died_is_loaded_anew_and_counted(rig):
    """It is unloaded first, which alone makes the host forget the dead one."""
    looks(rig, 1)
    rig.http.answers["POST", "/v2/repository/models/m/load"] = None
    rig.living = []
    assert comes_true(lambda: rig.asked("load") >= 1)
    rig.living = [rig.stub(2)]
    assert comes_true(lambda: len(rig.said) > 1)
    assert rig.asked("unload") >= 1
    assert "1 of its 1 stubs have died; it is loaded anew" in rig.said[0]
    assert "is back after" in rig.said[1]
    assert times_reloaded(rig.run, "m") >= 1
    assert comes_true(lambda: not (rig.memory / "r1").exists())
    assert (rig.memory / "r2").exists()


def sent(rig):
    """Return the parameters of the last load."""
    at = max(i for i, (_, path) in enumerate(rig.http.asked) if path.endswith("/m/load"))
    return json.loads(rig.http.bodies[at])["parameters"]


def test_a_model_is_loaded_as_it_was_served(rig):
    """With the configuration that the server has of it, whatever its folder says now."""
    looks(rig, 1)
    rig.http.config("m", backend="ge", instance_group=[{"count": 1}], default_model_filename="b")
    rig.http.answers["POST", "/v2/repository/models/m/load"] = None
    rig.living = []
    assert comes_true(lambda: rig.asked("load") >= 1)
    config = json.loads(sent(rig)["config"])
    assert (config["backend"], config["default_model_filename"]) == ("ge", "b")


@pytest.mark.parametrize("there", [True, False])
def test_files_that_came_with_a_load_come_with_the_next(rig, tmp_path, there):
    """The host keeps them until it unloads the model; without them it would be another model."""
    folder = tmp_path / "folderA1b2C3"
    (folder / "1" / "__pycache__").mkdir(parents=True)
    for name in ("config.pbtxt", "1/model.onnx", "1/__pycache__/model.pyc"):
        (folder / name).write_bytes(b"brought")
    rig.http.config("m", backend="ge", instance_group=[{"count": 1, "name": "m"}])
    rig.http.answers["POST", "/v2/repository/models/m/load"] = None
    file = folder / "1" / "model.py"
    rig.living = [Stub(pid=1, models=(folder.name,), region="r1", group="m", file=file)]
    looks(rig)
    if not there:
        shutil.rmtree(folder)
    rig.living = []
    if there:
        assert comes_true(lambda: rig.asked("load") >= 1)
        assert sent(rig).keys() == {"config", "file:1/model.onnx"}
    else:
        assert comes_true(lambda: rig.said)
        looks(rig)
        assert (rig.asked("load"), rig.asked("unload"), len(rig.said)) == (0, 0, 1)
        assert "files that came with its load request cannot be read" in rig.said[0]


def test_a_model_is_loaded_anew_where_that_cannot_be_counted(rig):
    """Its own folder may be fine where that of the server's processes cannot be written."""
    rig.run.touch()
    rig.http.answers["POST", "/v2/repository/models/m/load"] = None
    rig.living = []
    assert comes_true(lambda: any("is back after" in line for line in rig.said))


def test_a_model_whose_folder_is_away_is_told_and_loaded_anew_once_it_is_back(rig):
    """Unloaded without it, it would be gone for the host, and stay so."""
    looks(rig, 1)
    rig.http.answers["POST", "/v2/repository/models/m/load"] = None
    index = rig.http.answers["POST", "/v2/repository/index"]
    rig.http.answers["POST", "/v2/repository/index"] = []
    rig.living = []
    looks(rig, 5)
    assert [rig.asked("unload"), len(rig.said)] == [0, 1]
    assert "stubs have died; it is loaded anew once its folder is there" in rig.said[0]
    rig.http.answers["POST", "/v2/repository/index"] = index
    assert comes_true(lambda: any("is back after" in line for line in rig.said))


def test_instances_that_live_serve_while_the_model_is_loaded_anew(rig, monkeypatch):
    """It is not unloaded; what is left of it is ended once it has answered what it had."""
    ended = []
    monkeypatch.setattr(reloader_module, "GRACE_S", 0.0)
    monkeypatch.setattr(reloader_module.os, "kill", lambda pid, number: ended.append(pid))
    rig.http.config("m", backend="ge", instance_group=[{"count": 2}])
    rig.http.answers["POST", "/v2/repository/models/m/load"] = None
    assert comes_true(lambda: rig.asked("load") >= 1)
    rig.living += [rig.stub(2), rig.stub(3)]
    assert comes_true(lambda: 1 in ended)
    assert rig.asked("unload") == 0
    assert not {2, 3} & set(ended)
    assert "1 of its 2 stubs have died" in rig.said[0]


def test_a_model_that_cannot_be_loaded_beside_itself_is_unloaded_after_several_refusals(rig):
    """They cost the living instances, and not the model: there may be no memory for both."""
    rig.http.config("m", backend="ge", instance_group=[{"count": 2}])
    assert comes_true(lambda: rig.asked("unload") >= 1)
    asked = rig.http.asked
    unloaded = asked.index(("POST", "/v2/repository/models/m/unload"))
    before = asked[:unloaded].count(("POST", "/v2/repository/models/m/load"))
    assert before == reloader_module.REFUSALS
    assert comes_true(lambda: rig.asked("load") > before)


def test_one_refusal_leaves_the_living_instances_alone(rig, monkeypatch):
    """As of a file that cannot be read for a moment; it is loaded beside itself once it can."""
    load = ServerApi.load

    def loaded(api, model, asked, number):
        if number == 2:  # not later: it would be refused once more, and unloaded
            rig.http.answers["POST", "/v2/repository/models/m/load"] = None
            rig.living = [rig.stub(2), rig.stub(3)]
        load(api, model, asked, number)

    monkeypatch.setattr(ServerApi, "load", loaded)
    rig.http.config("m", backend="ge", instance_group=[{"count": 2}])
    assert comes_true(lambda: any("is back after" in line for line in rig.said))
    assert rig.asked("unload") == 0
    assert "1 of its 2 instances serve on" in rig.said[1]
    marks = [
        json.loads(body)["parameters"]["config"] for body in rig.http.bodies if b"LOADED" in body
    ]
    assert len(set(marks)) == len(marks)  # the host would do nothing for one that it knows
    assert times_reloaded(rig.run, "m") == 1


def test_a_model_whose_load_failed_is_loaded_until_it_is_ready(rig):
    """With pauses; it was one death, and one reload after it."""
    rig.living = []
    assert comes_true(lambda: rig.asked("load") >= 1)
    rig.http.models(m="UNAVAILABLE")
    looks(rig)
    tried, unloaded = rig.asked("load"), rig.asked("unload")
    assert comes_true(lambda: rig.asked("load") >= tried + 3)
    assert rig.asked("unload") == unloaded
    rig.http.answers["POST", "/v2/repository/models/m/load"] = None
    assert comes_true(lambda: any("is back after" in line for line in rig.said))
    tried = rig.asked("load")
    looks(rig)
    assert rig.asked("load") == tried
    assert times_reloaded(rig.run, "m") == 1


@pytest.mark.parametrize(
    ("state", "reason"), [("READY", ""), ("UNAVAILABLE", "unloaded")], ids=["loaded", "unloaded"]
)
def test_what_somebody_else_has_done_with_a_model_stays_so(rig, monkeypatch, state, reason):
    """Whoever has loaded or unloaded it meanwhile is in charge of it.

    Meanwhile is between two tries: right behind its own load the reloader looks what became of that.
    """
    rig.living = []
    rig.http.models(m="READY")
    assert comes_true(lambda: rig.asked("load") >= 1)
    rig.http.models(m="UNAVAILABLE")
    assert comes_true(lambda: rig.asked("load") >= 3)
    between, go, wait = threading.Event(), threading.Event(), rig.reloader._stop.wait

    def waiting(period_s):
        between.set()
        go.wait(30)
        return wait(period_s)

    monkeypatch.setattr(rig.reloader._stop, "wait", waiting)
    assert between.wait(30)
    rig.living = [rig.stub(2)]
    entry = {"name": "m", "version": "1", "state": state, "reason": reason}
    rig.http.answers["POST", "/v2/repository/index"] = [entry]
    go.set()
    looks(rig)
    tried = rig.asked("load")
    rig.http.models(m="UNAVAILABLE")
    looks(rig)
    assert rig.asked("load") == tried


def test_a_model_that_somebody_is_loading_is_left_to_them(rig):
    """Two loads of it would be one after the other."""
    rig.living = []
    assert comes_true(lambda: rig.asked("load") >= 1)
    rig.http.models(m="LOADING")
    looks(rig)
    tried = rig.asked("load")
    looks(rig)
    assert rig.asked("load") == tried


def test_pauses_grow(rig, monkeypatch):
    """To a minute, so that a model that cannot be loaded is no burden and no flood of lines."""
    monkeypatch.setattr(reloader_module, "FIRST_PAUSE_S", 2.0)
    monkeypatch.setattr(reloader_module, "LONGEST_PAUSE_S", 60.0)
    pauses = [0.0]
    for _ in range(6):
        pauses.append(reloader_module.next_pause_s(pauses[-1]))
    assert pauses == [0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]


def test_a_refusal_is_said(rig):
    """A server that lets nobody load models is looked at all the same."""
    del rig.http.answers["POST", "/v2/repository/models/m/unload"]
    rig.living = []
    assert comes_true(lambda: len(rig.said) > 1)
    assert "could not be loaded anew" in rig.said[1]


def test_where_models_cannot_be_loaded_a_death_is_said_once(rig):
    """Without explicit model control the host refuses for ever."""
    for what in ("load", "unload"):
        path = f"/v2/repository/models/m/{what}"
        rig.http.refuses[path] = "explicit model load / unload is not allowed if polling is enabled"
    rig.living = []
    assert comes_true(lambda: rig.said)
    looks(rig, 5)
    rig.living = [rig.stub(2)]
    looks(rig)
    rig.living = []
    assert comes_true(lambda: len(rig.said) > 2)
    looks(rig, 5)
    assert "it is loaded anew" in rig.said[0]
    assert "explicit model control" in rig.said[1]
    assert "stubs have died" in rig.said[2]
    assert len(rig.said) == 3
    assert rig.asked("load") + rig.asked("unload") == 1
