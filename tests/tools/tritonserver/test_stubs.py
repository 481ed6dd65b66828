"""Stubs are found by their command lines, and by whose children they are."""

from pathlib import Path

import pytest

from ge_tools.tritonserver import stubs
from ge_tools.tritonserver.stubs import Stub, arguments_of, server_at, stubs_of


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """A function that adds a process to a /proc of its own."""
    monkeypatch.setattr(stubs, "PROC", tmp_path)
    (tmp_path / "meminfo").touch()

    def add(pid, *words, parent=1):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(b"\0".join(map(str.encode, words)))
        (folder / "stat").write_text(f"{pid} (some (odd) name) S {parent} 1 1")

    return add


def test_a_server_is_known_by_its_port(processes):
    """The flag that came last counts; without one it is Triton's default."""
    processes(10, "/opt/bin/tritonserver", "--http-port=1", "--http-port=27000")
    processes(11, "/opt/bin/tritonserver", "--model-repository=/m")
    processes(12, "/usr/bin/python3", "--http-port=5")
    processes(13)  # a zombie
    processes(14, "tritonserver", "--http-port", "27001", "--http-port-too=3", "--model=x")
    processes(15, "tritonserver", "--http-port=many", "--http-port")
    ports = (27000, 27001, 8000, 5, 1)
    assert [server_at("127.0.0.1", port) for port in ports] == [10, 14, 11, 0, 0]


def test_a_server_is_known_by_its_address(processes):
    """Several machines' servers have the same port, and so may several of one machine."""
    processes(10, "tritonserver", "--http-address=0.0.0.0", "--http-address=127.0.0.1")
    processes(11, "tritonserver", "--http-address", "127.0.0.2")
    processes(12, "tritonserver", "--http-address=ipv6:::", "--http-port=1")
    hosts = ("127.0.0.1", "localhost", "0.0.0.0", "127.0.0.2", "127.0.0.3")
    assert [server_at(host, 8000) for host in hosts] == [10, 10, 10, 11, 0]
    assert [server_at(host, 1) for host in hosts] == [12] * 5


def test_what_a_server_was_started_with_is_seen(processes):
    """Of none there is nothing."""
    processes(10, "tritonserver", "--http-restricted-api", "health:a=1")
    assert arguments_of(10) == ["tritonserver", "--http-restricted-api", "health:a=1"]
    assert arguments_of(0) == []


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])
def test_a_server_of_another_machine_is_not_here(processes, host):
    """Source: RFC 5737: no machine has that address."""
    processes(10, "tritonserver")
    assert server_at(host, 8000) == 0


def test_only_a_servers_own_stubs_are_counted(processes):
    """Each says which model it serves, and where its shared memory is."""
    stub = "/t/backends/python/triton_python_backend_stub"
    processes(20, stub, "/models/m/3/model.py", "ge_1", "1048576", parent=10)
    processes(21, stub, "/models/m/3/model.py", "ge_2", "1048576", parent=99)
    processes(22, "/usr/bin/python3", "/models/m/3/model.py", "ge_3", parent=10)
    processes(23, parent=10)
    file = Path("/models/m/3/model.py")
    assert stubs_of(10) == [Stub(pid=20, models=("m",), region="ge_1", file=file)]


def test_a_models_file_may_lie_in_a_folder_of_its_version(processes):
    """`default_model_filename` may say so, with a number for a name; it is no other model then."""
    words = ["/t/backends/python/triton_python_backend_stub", "", "ge_1"]
    for folder in ("net/small", "8", "8/small", "net/8"):
        words[1] = f"/2024/models/m/3/{folder}/model.onnx"
        processes(len(stubs_of(10)) + 20, *words, parent=10)
    assert [stub.serves("m", ["m"]) for stub in stubs_of(10)] == [True] * 4
    assert not any(stub.serves("other", ["m"]) for stub in stubs_of(10))


def test_a_stub_in_a_folder_of_the_hosts_own_is_known_by_its_instance(processes):
    """There lies a model whose files came with its load; a model may be called so as well."""
    words = ["/t/triton_python_backend_stub", "/tmp/folderDm4lzF/1/model.py", "ge_1", *"12345"]
    processes(20, *words, "mine_0_1", "DEFAULT", parent=10)
    words[1] = "/models/folderly/1/model.py"
    processes(21, *words, "mine_0_1", "DEFAULT", parent=10)
    uploaded, other = sorted(stubs_of(10), key=lambda stub: stub.pid)
    assert uploaded.group == "mine_0"
    assert uploaded.serves("m", ["mine_0", "mine_0"])
    assert not uploaded.serves("m", ["m"])
    assert (uploaded.brought, other.brought) == (Path("/tmp/folderDm4lzF"), None)
    assert [other.serves(model, ["mine_0"]) for model in ("folderly", "m")] == [True, False]
