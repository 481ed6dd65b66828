import os
import shutil
import signal

import pytest

from ge_tools import install
from ge_tools.main import main
from ge_tools.tritonserver.assemble import backend_files


@pytest.fixture
def triton(tmp_path):
    """What looks like a Triton installation."""
    library = tmp_path / "triton" / "backends" / "python" / "libtriton_python.so"
    library.parent.mkdir(parents=True)
    library.touch()
    return tmp_path / "triton"


@pytest.mark.parametrize("below", ["", "backends"])
def test_the_installation_and_its_backends_folder_are_both_understood(triton, below, capsys):
    """The backend is copied to backends/ge either way, and is whole."""
    assert main(["install", str(triton / below)]) == 0

    target = triton / "backends" / "ge"
    package = backend_files()["ge_backend"]
    copied = {
        path.relative_to(target / "ge_backend")
        for path in target.rglob("*.py")
        if path.is_relative_to(target / "ge_backend")
    }
    assert copied == {path.relative_to(package) for path in package.rglob("*.py")}
    assert "class TritonPythonModel" in (target / "model.py").read_text()
    assert not list(target.rglob("__pycache__"))
    assert not (target / "model.py").is_symlink()
    assert capsys.readouterr().out == f"copied the backend to {target}\n"


def test_installing_again_replaces_what_was_there(triton):
    """Files of an older version do not stay."""
    main(["install", str(triton)])
    stale = triton / "backends" / "ge" / "ge_backend" / "stale.py"
    stale.touch()

    assert main(["install", str(triton)]) == 0
    assert not stale.exists()
    assert {path.name for path in (triton / "backends").iterdir()} == {"python", "ge"}


def test_linked_files_are_these_files(triton, capsys):
    """So that a checkout is served as it is edited."""
    assert main(["install", str(triton), "--link"]) == 0

    target = triton / "backends" / "ge"
    assert (target / "model.py").resolve() == backend_files()["model.py"]
    assert (target / "ge_backend").resolve() == backend_files()["ge_backend"]
    assert "linked" in capsys.readouterr().out


@pytest.mark.parametrize("how", [[], ["--link"]])
def test_uninstall_takes_it_out_and_nothing_else(triton, how):
    """The files that links led to stay; a second time finds nothing and is no error."""
    main(["install", str(triton), *how])

    assert main(["install", str(triton), "--uninstall"]) == 0
    assert not (triton / "backends" / "ge").exists()
    assert (triton / "backends" / "python").is_dir()
    assert backend_files()["ge_backend"].is_dir()
    assert main(["install", str(triton), "--uninstall"]) == 0


def test_what_cannot_be_removed_is_told(triton, monkeypatch, capsys):
    """And it is not called removed."""
    main(["install", str(triton)])
    capsys.readouterr()

    def refused(path, _):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "move", refused)
    assert main(["install", str(triton), "--uninstall"]) == 2
    target = triton / "backends" / "ge"
    told = f"ge-backend: cannot remove {target}: Permission denied\n"
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("action", [[], ["--link"], ["--uninstall"]])
def test_what_is_interrupted_while_it_removes_can_be_done_again(triton, action, monkeypatch):
    """No half of a backend is left in its place, which would be taken for somebody else's."""
    main(["install", str(triton)])

    def interrupted(path, *_, **__):
        next(install.Path(path).rglob("model.py")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", interrupted)
        assert main(["install", str(triton), *action]) == 128 + signal.SIGINT

    assert main(["install", str(triton), *action]) == 0
    assert (triton / "backends" / "ge").exists() == (action != ["--uninstall"])


def test_a_full_disk_is_told(triton, monkeypatch, capsys):
    """Of a folder, copying says what became of each file; one reason is enough."""
    copy = shutil.copyfile

    def full(source, target, **how):
        if target.name == "metrics.py":
            raise OSError(28, "No space left on device", str(target))
        return copy(source, target, **how)

    monkeypatch.setattr(shutil, "copyfile", lambda s, t, **how: full(s, install.Path(t), **how))

    assert main(["install", str(triton)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"ge-backend: cannot write {triton / 'backends' / 'ge'}: [Errno 28] No ")
    assert [path.name for path in (triton / "backends").iterdir()] == ["python"]


def test_a_folder_that_is_no_installation_is_refused(tmp_path, capsys):
    """And nothing is written."""
    assert main(["install", str(tmp_path)]) == 2

    assert "is not a Triton installation" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("action", [[], ["--uninstall"]])
def test_a_folder_named_ge_that_is_not_ours_is_left_alone(triton, action, capsys):
    """It may be somebody's C++ backend of that name."""
    other = triton / "backends" / "ge" / "libtriton_ge.so"
    other.parent.mkdir()
    other.touch()

    assert main(["install", str(triton), *action]) == 2
    assert other.exists()
    assert "is not this backend" in capsys.readouterr().err


@pytest.fixture
def copied(triton, monkeypatch):
    """The installed copy, as the one that the command runs from."""
    main(["install", str(triton)])
    folder = triton / "backends" / "ge"
    files = {name: folder / name for name in backend_files()}
    monkeypatch.setattr(install, "backend_files", lambda: files)
    return folder


@pytest.mark.parametrize("action", [[], ["--link"], ["--uninstall"]])
def test_links_whose_files_are_gone_are_ours(triton, tmp_path, action):
    """The environment that they led to may be removed before they are; their names tell."""
    target = triton / "backends" / "ge"
    main(["install", str(triton), "--link"])
    for name in backend_files():
        (target / name).unlink()
        (target / name).symlink_to(tmp_path / "gone" / name)

    assert main(["install", str(triton), *action]) == 0
    assert (target / "model.py").is_file() == (action != ["--uninstall"])


def test_an_installed_copy_does_not_link_to_itself(triton, copied, capsys):
    """It would remove its files, and leave links that lead to themselves."""
    assert main(["install", str(triton), "--link"]) == 2

    assert (copied / "model.py").is_file()
    assert "cannot be linked to itself" in capsys.readouterr().err


def test_everybody_can_read_what_is_installed(triton):
    """The server is often another user than who installs it, with a mask of his own."""
    before = os.umask(0o027)
    try:
        assert main(["install", str(triton)]) == 0
    finally:
        os.umask(before)
    target = triton / "backends" / "ge"
    for path in (target, *target.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path
