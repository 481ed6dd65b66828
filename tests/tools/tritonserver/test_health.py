"""A model is ill that is called ready and has fewer stubs than instances."""

from dataclasses import replace

import pytest

from builders.server_http import ServerHttp
from ge_backend.executor.process.host_processes import Stub
from ge_tools.tritonserver import health
from ge_tools.tritonserver.api import ServerApi
from ge_tools.tritonserver.health import StubLoss, stub_losses


def stub(pid, model):
    return Stub(pid=pid, models=(model,), region=f"r{pid}")


@pytest.fixture
def server():
    server = ServerHttp()
    yield server
    server.close()


def test_models_with_too_few_stubs_are_told(server, monkeypatch):
    """Those that load, and those without stubs, are none of it."""
    server.models(well="READY", ill="READY", gone="READY", loading="LOADING", other="READY")
    for name in ("well", "ill"):
        server.config(name, backend="ge", instance_group=[{"count": 2}])
    server.config("gone", backend="ge", instance_group=[{"count": 1}])
    server.config("other", backend="onnxruntime", instance_group=[{"count": 1}])
    living = [stub(1, "well"), stub(2, "well"), stub(3, "ill")]
    monkeypatch.setattr(health, "stubs_of", lambda server: living if server == 7 else [])
    found = stub_losses(ServerApi("127.0.0.1", server.port), 7)
    assert found == [
        StubLoss(model="gone", living=0, expected=1),
        StubLoss(model="ill", living=1, expected=2),
    ]
    assert str(found[1]) == "model 'ill' is READY, but 1 of its 2 stubs have died"


def test_each_version_has_stubs_of_its_own(server, monkeypatch):
    """One that has lost its stub is told, though the model has as many as instances."""
    server.serves(("m", "1"), ("m", "2"), ("m", "3"))
    server.config("m", backend="ge", instance_group=[{"count": 1}])
    monkeypatch.setattr(health, "stubs_of", lambda _: [stub(1, "m"), stub(2, "m")])
    found = stub_losses(ServerApi("127.0.0.1", server.port), 7)
    assert found == [StubLoss(model="m", living=2, expected=3)]


def test_a_model_whose_folder_is_away_is_told(server, monkeypatch):
    """The host leaves it out of its index, and serves it on."""
    server.models(m="READY")
    server.config("m", backend="ge", instance_group=[{"count": 1}])
    server.answers["POST", "/v2/repository/index"] = []
    monkeypatch.setattr(health, "stubs_of", lambda _: [])
    found = stub_losses(ServerApi("127.0.0.1", server.port), 7)
    assert found == [StubLoss(model="m", living=0, expected=1)]


def test_a_model_that_came_with_its_load_has_its_stubs_elsewhere(server, monkeypatch):
    """In a folder of the host's, where its instances tell them from those of others."""
    server.models(m="READY", other="READY")
    server.config("m", backend="ge", instance_group=[{"name": "m", "count": 2}])
    server.config("other", backend="ge", instance_group=[{"name": "other", "count": 1}])
    living = [replace(stub(pid, "folderDm4lzF"), group="m") for pid in (1, 2)]
    monkeypatch.setattr(health, "stubs_of", lambda _: living)
    found = stub_losses(ServerApi("127.0.0.1", server.port), 7)
    assert found == [StubLoss(model="other", living=0, expected=1)]
