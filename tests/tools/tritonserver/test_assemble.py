from dataclasses import replace
from pathlib import Path

import pytest

import ge_backend
from ge_backend.errors import ServerError
from ge_tools.tritonserver import assemble
from ge_tools.tritonserver.assemble import assemble_backends, backend_files
from ge_tools.tritonserver.installation import ServerInstallation

PACKAGE = Path(ge_backend.__file__).resolve().parent


@pytest.fixture
def server(tmp_path) -> ServerInstallation:
    backends = tmp_path / "installed" / "backends"
    for name in (
        "python/libtriton_python.so",
        "python/triton_python_backend_utils.py",
        "onnx/a.so",
    ):
        (backends / name).parent.mkdir(parents=True, exist_ok=True)
        (backends / name).write_text(name)
    stub = tmp_path / "stubs" / "triton_python_backend_stub"
    stub.parent.mkdir()
    stub.write_text("the stub")
    return ServerInstallation(
        binary=tmp_path / "tritonserver",
        libraries=(),
        backends=backends,
        stub=stub,
        stub_versions=("3.11",),
        caches=None,
        version="",
    )


def test_the_folder_has_the_python_backend_the_right_stub_and_ours(server, tmp_path):
    """Every name leads to its file, the server's other backends included."""
    into = assemble_backends(server, tmp_path / "assembled")

    assert (into / "python" / "libtriton_python.so").read_text() == "python/libtriton_python.so"
    assert (into / "python" / "triton_python_backend_stub").read_text() == "the stub"
    assert (into / "onnx" / "a.so").read_text() == "onnx/a.so"
    assert "class TritonPythonModel" in (into / "ge" / "model.py").read_text()
    assert (into / "ge" / "ge_backend" / "errors.py").read_text()


def test_the_python_backends_library_is_no_link(server, tmp_path):
    """The server refuses one for Python-based backends: it "escapes" their folder."""
    into = assemble_backends(server, tmp_path / "assembled")

    assert not any(path.is_symlink() for path in (into / "python").iterdir())


def test_an_installed_copy_of_ours_does_not_win(server, tmp_path):
    """What serves is what the command belongs to."""
    old = server.backends / "ge"
    old.mkdir()
    (old / "model.py").write_text("old")

    into = assemble_backends(server, tmp_path / "assembled")
    assert "class TritonPythonModel" in (into / "ge" / "model.py").read_text()


def test_without_a_stub_for_this_python_the_message_names_those_there_are(server, tmp_path):
    """And nothing is assembled."""
    with pytest.raises(ServerError, match=r"no Python stub for Python 3\.\d+; it has: 3.11"):
        assemble_backends(replace(server, stub=None), tmp_path / "assembled")


LIBRARY = "libpython3.99.so.1.0"


def test_a_python_without_its_shared_library_is_refused(server, tmp_path):
    """As Debian's without libpython3.x, or pyenv's: no stub would start, and the host waits."""
    server.stub.write_bytes(f"\0{LIBRARY}\0".encode())
    with pytest.raises(
        ServerError, match=rf"needs {LIBRARY}.*apt-get install libpython3\.\d+, .*--enable-shared"
    ):
        assemble_backends(server, tmp_path / "assembled")
    assert not (tmp_path / "assembled").exists()


def test_a_library_among_the_servers_is_there(server, tmp_path):
    """The stub is given these folders."""
    server.stub.write_bytes(f"\0{LIBRARY}\0".encode())
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / LIBRARY).touch()
    assemble_backends(replace(server, libraries=(tmp_path / "libs",)), tmp_path / "assembled")


def test_a_library_that_the_loader_finds_is_there(server, tmp_path, monkeypatch):
    """A system's own lies where the loader looks by itself."""
    server.stub.write_bytes(f"\0{LIBRARY}\0".encode())
    asked = []
    monkeypatch.setattr(assemble.ctypes, "CDLL", asked.append)
    assemble_backends(server, tmp_path / "assembled")
    assert asked == [LIBRARY]


def test_the_wheels_copy_of_model_py_equals_the_folders():
    """A wheel cannot install a file beside its package; the copy in it must not go astray."""
    beside = PACKAGE.parent / "model.py"
    copy = Path(assemble.__file__).parent / "model.py.txt"

    assert copy.read_text() == beside.read_text()


def test_a_package_without_model_py_beside_it_brings_its_copy(monkeypatch, tmp_path):
    """So it is after `pip install` from a wheel."""
    alone = tmp_path / "site-packages" / "ge_backend" / "__init__.py"
    monkeypatch.setattr(assemble.ge_backend, "__file__", str(alone))

    files = backend_files()
    assert files["model.py"] == Path(assemble.__file__).parent / "model.py.txt"
    assert files["ge_backend"] == alone.parent
