"""What a server says is read as it means it, and what it refuses is an error with its words."""

import base64
import json
from dataclasses import replace

import pytest

from builders.server_http import ServerHttp
from ge_backend.errors import ServerError
from ge_backend.model.config.settings import HOST_PREFIXES
from ge_tools.tritonserver.api import MARK, LoadRequest, ServerApi
from ge_tools.tritonserver.options import KEY_HEADER


@pytest.fixture
def server():
    server = ServerHttp()
    yield server
    server.close()


@pytest.fixture
def api(server):
    return ServerApi("127.0.0.1", server.port)


def test_each_version_that_is_served_counts(server, api):
    """As the host keeps statistics of them; it has those of no other."""
    server.serves(("a", "2"), ("a", "3"), ("b", "1"))
    assert api.ready_versions() == {"a": 2, "b": 1}


def test_a_models_versions_have_states_and_reasons(server, api):
    """One that nobody has loaded has none."""
    server.answers["POST", "/v2/repository/index"] = [
        {"name": "a", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "a", "version": "2", "state": "READY"},
        {"name": "b"},
    ]
    assert api.states("a") == [("UNAVAILABLE", "unloaded"), ("READY", "")]
    assert api.states("b") == []


def test_a_key_is_shown_to_who_asks_for_it(server, api):
    """And no header comes without one, nor where none is asked for."""
    server.models(a="READY")
    api.states("a")
    keyed = replace(api, keys={"model-repository": (KEY_HEADER, "abc")})
    keyed.states("a")
    keyed.is_ready()
    assert [headers.get(KEY_HEADER) for headers in server.headers] == [None, "abc", None]


def test_a_server_that_asks_for_a_key_is_neither_dead_nor_unready(server, api):
    """Its own words name the header."""
    server.restricts["/v2/health/live"] = server.restricts["/v2/health/ready"] = "door"
    for ask in (api.is_live, api.is_ready):
        with pytest.raises(ServerError, match="restricted, expecting header 'door'"):
            ask()


@pytest.mark.parametrize(
    ("config", "groups"),
    [
        ({"backend": "ge", "instance_group": [{"name": "a", "count": 2}, {"name": "b"}]}, "aab"),
        ({"backend": "python", "instance_group": [{"name": "a", "gpus": [0, 1]}]}, "aa"),
        ({"backend": "onnxruntime", "instance_group": [{"name": "a", "count": 2}]}, ""),
        ({"platform": "ensemble"}, ""),
    ],
)
def test_python_models_have_a_stub_for_each_instance(server, api, config, groups):
    """On each of their GPUs; other backends have none."""
    server.config("m", **config)
    assert api.python_instances("m") == list(groups)


@pytest.mark.parametrize("name", ["an ensemble", "modèle", "a/b", "a?b"])
def test_a_name_that_no_python_model_can_have_is_not_asked_for(api, name):
    """One such model, an ensemble say, would keep all others from being looked at."""
    assert api.python_instances(name) == []


def test_models_are_loaded_and_unloaded(server, api):
    """By Triton's own paths."""
    server.answers["POST", "/v2/repository/models/m/load"] = None
    server.answers["POST", "/v2/repository/models/m/unload"] = None
    api.unload("m")
    api.load("m")
    assert [path.rpartition("/")[2] for _, path in server.asked] == ["unload", "load"]
    with pytest.raises(ServerError, match="other/load: 400"):
        api.load("other")


def test_a_model_is_loaded_with_the_configuration_that_it_has(server, api):
    """Which differs by a parameter that nobody reads, or the host would do nothing."""
    given = {"backend": "ge", "parameters": {"device": {"string_value": "null"}}}
    server.config("m", **given)
    server.answers["POST", "/v2/repository/models/m/load"] = None
    api.load("m", api.served("m"), 3)
    (sent,) = json.loads(server.bodies[-1])["parameters"].values()
    config = json.loads(sent)
    assert config.pop("parameters") == {
        "device": {"string_value": "null"},
        MARK: {"string_value": "3"},
    }
    assert config == {"name": "m", "backend": "ge"}
    assert MARK.startswith(HOST_PREFIXES)


def test_files_come_along_where_a_model_has_its_own(server, api):
    """As Triton's model repository extension takes them: in base64, by their places."""
    server.answers["POST", "/v2/repository/models/m/load"] = None
    asked = LoadRequest(config={"name": "m"}, files={"1/model.onnx": b"\x00graph"})
    api.load("m", asked, 1)
    sent = json.loads(server.bodies[-1])["parameters"]
    assert base64.b64decode(sent["file:1/model.onnx"]) == b"\x00graph"


def test_a_server_that_is_gone_is_not_live(server, api):
    """It neither lives nor is ready, and everything else is an error."""
    assert api.is_live()
    assert api.is_ready()
    del server.answers["GET", "/v2/health/ready"]
    assert not api.is_ready()
    server.close()
    assert not api.is_live()
    with pytest.raises(ServerError, match=str(api.port)):
        api.ready_versions()
