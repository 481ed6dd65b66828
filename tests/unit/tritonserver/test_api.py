"""What a server says is read as it means it, and what it refuses is an error with its words."""

import pytest

from builders.server_http import ServerHttp
from ge_backend.errors import ServerError
from ge_backend.tritonserver.api import ServerApi


@pytest.fixture
def server():
    server = ServerHttp()
    yield server
    server.close()


@pytest.fixture
def api(server):
    return ServerApi("127.0.0.1", server.port)


def test_a_model_is_as_its_best_version(server, api):
    """One version that is ready makes the model ready."""
    server.answers["POST", "/v2/repository/index"] = [
        {"name": "a", "version": "1", "state": "UNAVAILABLE"},
        {"name": "a", "version": "2", "state": "READY"},
        {"name": "a", "version": "3", "state": "UNAVAILABLE"},
        {"name": "b"},
    ]
    assert api.models() == {"a": "READY", "b": ""}


@pytest.mark.parametrize(
    ("config", "instances"),
    [
        ({"backend": "ge", "instance_group": [{"count": 2}, {"count": 1}]}, 3),
        ({"backend": "python", "instance_group": [{"count": 2, "gpus": [0, 1]}]}, 4),
        ({"backend": "onnxruntime", "instance_group": [{"count": 2}]}, 0),
        ({"platform": "ensemble"}, 0),
    ],
)
def test_python_models_have_a_stub_for_each_instance(server, api, config, instances):
    """On each of their GPUs; other backends have none."""
    server.config("m", **config)
    assert api.python_instances("m") == instances


def test_models_are_loaded_and_unloaded(server, api):
    """By Triton's own paths."""
    server.answers["POST", "/v2/repository/models/m/load"] = None
    server.answers["POST", "/v2/repository/models/m/unload"] = None
    api.unload("m")
    api.load("m")
    assert [path.rpartition("/")[2] for _, path in server.asked] == ["unload", "load"]
    with pytest.raises(ServerError, match="other/load: 400"):
        api.load("other")


def test_a_server_that_is_gone_is_not_live(server, api):
    """It neither lives nor is ready, and everything else is an error."""
    assert api.is_live()
    assert api.is_ready()
    del server.answers["GET", "/v2/health/ready"]
    assert not api.is_ready()
    server.close()
    assert not api.is_live()
    with pytest.raises(ServerError, match=str(api.port)):
        api.models()
