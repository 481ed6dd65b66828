"""What the server above has been told, and serves, is found where it says so."""

import os
import time

import pytest

from builders.server_http import ServerHttp
from ge_backend.errors import ConfigError
from ge_backend.executor.process.host_processes import STUB
from ge_backend.serving.host_server import HostServer

TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def http():
    server = ServerHttp()
    yield server
    server.close()


@pytest.fixture
def started(tmp_path, http):
    """A server with a repository, which HTTP and the kernel show; with further arguments."""
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('backend: "ge" max_batch_size: 8')
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "uptime").write_text("1000.0 0.0\n")

    def start(*further):
        given = (f"--model-repository={tmp_path / 'models'}", "--http-port", str(http.port))
        return HostServer(7, ("tritonserver", *given, *further), tmp_path / "proc")

    return start


def add_stub(folder, file, instance, *, age_s=0.0, parent=7):
    """Show a stub as the kernel does."""
    process = folder / "proc" / str(100 + len(list((folder / "proc").iterdir())))
    process.mkdir()
    words = [STUB, str(file), "region", *"12345", instance, "backend"]
    (process / "cmdline").write_text("\0".join(words) + "\0")
    began = int((1000.0 - age_s) * TICKS)
    (process / "stat").write_text(f"1 ({STUB}) S {parent} " + "0 " * 17 + f"{began} 0")


def test_a_model_is_configured_as_the_server_serves_it(started, http, tmp_path):
    """What a load request brought counts, where it is ready; else the folder's file."""
    folder = tmp_path / "models" / "m"
    assert started().document(folder)["max_batch_size"] == 8
    http.config("m", backend="ge", max_batch_size=3)
    assert started().document(folder)["max_batch_size"] == 3


def test_a_server_that_asks_for_a_key_is_shown_it(started, http, tmp_path):
    """Its own arguments have it."""
    http.config("m", backend="ge", max_batch_size=3)
    http.restricts["/v2/models/m/config"] = "door"
    key = "--http-restricted-api=health,model-config:door=open"
    assert started(key).document(tmp_path / "models" / "m")["max_batch_size"] == 3
    assert http.headers[-1]["door"] == "open"


@pytest.mark.parametrize("closed", ["--allow-http=false", "--reuse-http-port=true"])
def test_a_server_that_cannot_be_asked_is_not(started, http, tmp_path, closed):
    """Without HTTP, or where another server may answer: files tell."""
    http.config("m", backend="ge", max_batch_size=3)
    assert started(closed).document(tmp_path / "models" / "m")["max_batch_size"] == 8
    assert http.asked == []


@pytest.mark.parametrize("given", [("--model-config-name=edge",), ("--model-config-name", "edge")])
def test_files_of_another_name_count_where_the_server_reads_them(started, tmp_path, given):
    """As one word or as two."""
    folder = tmp_path / "models" / "m"
    (folder / "configs").mkdir()
    (folder / "configs" / "edge.pbtxt").write_text('backend: "ge" max_batch_size: 2')
    assert started(*given).document(folder)["max_batch_size"] == 2
    assert started().document(folder)["max_batch_size"] == 8


def test_a_model_whose_files_came_with_its_load_is_refused(started, http, tmp_path):
    """Nobody else can run them; those of other models do not matter."""
    folder = tmp_path / "models" / "m"
    http.config("m", backend="ge", instance_group=[{"name": "m"}])
    add_stub(tmp_path, "/tmp/folderA1b2C3/1/model.py", "other_0")
    add_stub(tmp_path, "/tmp/folderA1b2C4/1/model.py", "m_0", parent=8)
    started().document(folder)
    add_stub(tmp_path, "/tmp/folderA1b2C5/1/model.py", "m_0")
    with pytest.raises(ConfigError, match="'m' is served from files that came with its load"):
        started().document(folder)


def test_a_configuration_was_handed_over_where_files_explain_no_load(started, http, tmp_path):
    """Its files came along; or it is ready, and as it was when its stub began."""
    brought, own = tmp_path / "folderA1b2C3" / "1", tmp_path / "models" / "m" / "1"
    brought.mkdir(parents=True)
    assert started().was_handed(brought)
    assert not started().was_handed(own)
    add_stub(tmp_path, own / "model.py", "m_0", age_s=-5)  # begun after all that was written
    assert not started().was_handed(own)
    http.config("m", backend="ge")
    assert started().was_handed(own)


def test_a_model_that_was_changed_is_loaded_for_that(started, http, tmp_path):
    """The host loads it anew by itself, or when it is told to."""
    own = tmp_path / "models" / "m" / "1"
    http.config("m", backend="ge")
    add_stub(tmp_path, own / "model.py", "m_0", age_s=60)
    assert time.time() - (own.parent / "config.pbtxt").stat().st_ctime < 60
    assert not started().was_handed(own)


def test_where_all_models_are_copied_nothing_is_sure(started, tmp_path):
    """As from a store of objects: each has a folder of the host's own."""
    brought = tmp_path / "folderA1b2C3" / "1"
    brought.mkdir(parents=True)
    assert not started("--model-repository=s3://bucket/models").was_handed(brought)
    assert not HostServer(7, ()).was_handed(brought)
