import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ge_backend.errors import ServerError
from ge_tools.tritonserver import installation
from ge_tools.tritonserver.installation import (
    find_server,
    running_python,
    stub_library,
    stub_python,
)

STUB = "triton_python_backend_stub"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No server is found by itself: no variable, no container, no wheel."""
    monkeypatch.delenv("GE_TRITONSERVER", raising=False)
    monkeypatch.setattr(installation, "CONTAINER", tmp_path / "container")
    monkeypatch.setattr(installation, "_wheel_roots", lambda: iter([tmp_path / "wheel"]))


def install(root: Path, *, stub: bytes = b"", versions: tuple[str, ...] = ()) -> Path:
    for name in ("bin/tritonserver", "backends/python/libtriton_python.so"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    if stub:
        (root / "backends" / "python" / STUB).write_bytes(stub)
    for version in versions:
        folder = root / "python_backend_stubs" / version
        folder.mkdir(parents=True)
        (folder / STUB).touch()
    return root


def test_the_order_is_explicit_then_variable_then_container_then_wheel(tmp_path, monkeypatch):
    """Each place wins over those after it."""
    wheel = install(tmp_path / "wheel")
    assert find_server().binary == wheel / "bin" / "tritonserver"

    container = install(tmp_path / "container")
    assert find_server().binary == container / "bin" / "tritonserver"

    variable = install(tmp_path / "variable")
    monkeypatch.setenv("GE_TRITONSERVER", str(variable))
    assert find_server().binary == variable / "bin" / "tritonserver"

    explicit = install(tmp_path / "explicit")
    assert find_server(explicit).binary == explicit / "bin" / "tritonserver"


def test_the_binary_itself_names_an_installation_too(tmp_path):
    """Its folder and its binary lead to the same installation."""
    root = install(tmp_path / "any")

    assert find_server(root / "bin" / "tritonserver") == find_server(root)


@pytest.mark.parametrize(
    ("version", "how"),
    [
        ((3, 12), r"pip install 'triton-ge-backend\[server\]'"),
        ((3, 13), r"pip install --no-deps nvidia-pytriton==0\.7\.0 'numpy<2'"),
    ],
)
def test_no_server_anywhere_says_where_it_looked_and_what_to_install(monkeypatch, version, how):
    """The message has every place, and the extra where that brings a server."""
    monkeypatch.setattr(installation, "sys", SimpleNamespace(version_info=version))
    with pytest.raises(ServerError, match=rf"GE_TRITONSERVER.*container.*nvidia-pytriton.*{how}"):
        find_server()


def test_the_server_is_what_the_repository_installs():
    """On Python 3.13 by requirements-server.txt, before by the extra, which leaves it out there."""
    root = Path(__file__).resolve().parents[3]
    said = re.search(r"nvidia-pytriton==[0-9.]+", Path(installation.__file__).read_text())[0]
    assert said in (root / "requirements-server.txt").read_text().splitlines()
    major, minor = installation.WITHOUT_NUMPY_1
    extra = rf'"nvidia-pytriton>=[0-9.]+; python_version < \'{major}\.{minor}\'"'
    assert re.search(extra, (root / "pyproject.toml").read_text())


def test_a_named_place_without_a_server_is_an_error_even_if_another_has_one(tmp_path):
    """What was named is not silently replaced by the wheel's."""
    install(tmp_path / "wheel")

    with pytest.raises(
        ServerError, match=r"is not a tritonserver.*bin/tritonserver does not exist"
    ):
        find_server(tmp_path / "typo")


def test_a_wheel_has_a_stub_for_each_python_and_ours_is_chosen(tmp_path):
    """Versions sort as numbers: 3.99 before 3.100."""
    root = install(tmp_path / "any", versions=("3.100", "3.99"))
    assert find_server(root).stub is None

    mine = root / "python_backend_stubs" / running_python()
    mine.mkdir()
    (mine / STUB).touch()
    found = find_server(root)
    assert found.stub == mine / STUB
    assert found.stub_versions == (running_python(), "3.99", "3.100")


def test_the_single_stub_of_a_container_counts_for_the_python_it_is_linked_with(tmp_path):
    """Linked with this Python it is ours; with another it is not."""
    minor = sys.version_info.minor
    mine = install(tmp_path / "mine", stub=b"\0libpython3.%d.so.1.0\0" % minor)
    other = install(tmp_path / "other", stub=b"\0libpython3.%d.so.1.0\0" % (minor + 1))

    assert find_server(mine).stub == mine / "backends" / "python" / STUB
    assert find_server(other).stub is None
    assert find_server(other).stub_versions == (f"3.{minor + 1}",)


def test_the_libraries_of_a_wheel_and_of_a_container_are_found(tmp_path):
    """`lib` beside `bin`, and the folder that auditwheel adds two levels up."""
    root = install(tmp_path / "site-packages" / "pytriton" / "tritonserver")
    (root / "lib").mkdir()
    (tmp_path / "site-packages" / "nvidia_pytriton.libs").mkdir()

    expected = (root / "lib", tmp_path / "site-packages" / "nvidia_pytriton.libs")
    assert find_server(root).libraries[:2] == expected


def test_a_container_says_its_version(tmp_path):
    """TRITON_VERSION is read without its newline."""
    root = install(tmp_path / "any")
    (root / "TRITON_VERSION").write_text("2.51.0\n")

    assert find_server(root).version == "2.51.0"


@pytest.mark.parametrize(
    ("content", "version", "library"),
    [
        (b"..\0libpython3.12.so.1.0\0..", "3.12", "libpython3.12.so.1.0"),
        (b"..\0libpython3-419a3a08.13.so.1.0\0..", "3.13", "libpython3-419a3a08.13.so.1.0"),
        (b"..\0libpython3.so\0..", "", ""),
    ],
)
def test_a_stub_is_linked_with_a_python(tmp_path, content, version, library):
    """With the hash of a wheel, without, and not at all."""
    stub = tmp_path / "stub"
    stub.write_bytes(content)

    assert stub_python(stub) == version
    assert stub_library(stub) == library
