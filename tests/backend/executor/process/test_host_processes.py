"""Stubs are found by their command lines, and by whose children they are."""

from pathlib import Path

from ge_backend.executor.process.host_processes import Stub, stubs_of, values_of


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


def test_each_value_of_a_flag_is_found():
    """As one word or two, and shortened as far as no other flag is meant; other flags are not."""
    arguments = ["--some-flag=1", "--some-flag", "2", "--some-f=3", "--some=4", "--some-flags=5"]
    assert values_of(arguments, "--some-flag", "--some-f") == ["1", "2", "3"]
    assert values_of(arguments, "--some-flag") == ["1", "2"]
    assert values_of(["--some-flag"], "--some-flag", "--some-f") == [""]
    assert values_of([], "--some-flag", "--some-f") == []
