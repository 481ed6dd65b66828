"""What `python -m build` makes: installed into an environment of its own, it serves a model."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from onnx import TensorProto, helper

from builders.graphs import graph
from builders.pages import PAGES, commands
from builders.roots import ROOTS
from builders.roots import sources as source_files

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "backend", "frontend", "tools")
LIMIT_S = 120


def built(sources: Path, out: Path) -> Path:
    """Return a wheel that is built where its sources are, as `pip install .` does it."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run(
        [*command, str(sources)], check=False, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A copy of this checkout: a build writes into its sources."""
    copy = tmp_path_factory.mktemp("sources")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory) -> Path:
    """The wheel of this checkout."""
    return built(sources, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory) -> Path:
    """The `bin` folder of an environment that has the wheel and nothing of this checkout.

    The libraries are this one's, by a path: what makes the checkout importable here, a finder in a
    file of that folder, is not read there.
    """
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*command, "--no-index", "--no-deps", str(wheel)], check=True, timeout=LIMIT_S)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    libraries = folder / "lib" / version / "site-packages" / "libraries.pth"
    libraries.write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def run(clean: Path, program: str, *arguments: str) -> str:
    """Return what a program of the clean environment prints."""
    command = [str(clean / program), *arguments]
    done = subprocess.run(
        command, cwd=clean, check=False, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def metadata(wheel: Path) -> str:
    """Return the METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def test_the_version_stands_in_one_place(wheel, clean):
    """pyproject.toml; the wheel's name, the command and the changelog follow it."""
    (version,) = re.findall(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text())
    assert wheel.name.startswith(f"triton_ge_backend-{version}-")
    assert run(clean, "ge-backend", "--version") == f"ge-backend {version}"
    headings = re.findall(r"(?m)^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text())
    assert headings[0] in {"Unreleased", version}
    for path in source_files():
        assert f'"{version}"' not in path.read_text()


def test_the_extras_that_the_pages_name_are_in_the_wheel(wheel):
    """So that `pip install 'triton-ge-backend[…]'` works from it."""
    known = set(re.findall(r"(?m)^Provides-Extra: (.+)$", metadata(wheel)))
    asked = {
        name
        for page in PAGES
        for command in commands(page)
        for extras in re.findall(r"^pip install .*\[([\w,]+)\]", command.text)
        for name in extras.split(",")
    }
    assert {"server", "onnx", "tools"} <= asked
    assert asked <= known


@pytest.mark.parametrize("root", ROOTS)
def test_everything_of_a_root_is_in_the_wheel(wheel, root):
    """Every file that git knows below it: modules, templates, the copy of model.py."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout: git does not know which files there are")
    listed = subprocess.run(
        ["git", "ls-files", root],
        cwd=ROOTS[root].parent,
        check=True,
        capture_output=True,
        text=True,
    )
    with zipfile.ZipFile(wheel) as archive:
        assert set(listed.stdout.split()) <= set(archive.namelist())
        assert "model.py" not in archive.namelist()  # it would be taken for other backends' own


def test_a_second_build_takes_files_as_they_are(wheel, sources, tmp_path):
    """Also one that came with an older date than the first build, as from an archive."""
    file = sources / "backend" / "ge" / "ge_backend" / "errors.py"
    file.write_text(file.read_text() + "NEWER = True\n")
    os.utime(file, (0, 1e9))
    with zipfile.ZipFile(built(sources, tmp_path)) as archive:
        assert b"NEWER" in archive.read("ge_backend/errors.py")


def test_a_model_is_served_from_the_wheel(installation, clean, tmp_path):
    """`ge-backend serve` of the clean environment; nothing of this checkout takes part."""
    place = run(clean, "python", "-c", "import ge_backend; print(ge_backend.__file__)")
    assert Path(place).is_relative_to(clean.parent)
    version = tmp_path / "models" / "double" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "ge"')
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    ends = [[(name, TensorProto.FLOAT, ["batch", 3])] for name in ("x", "y")]
    (version / "model.onnx").write_bytes(graph(nodes, *ends, []))
    ports = [f"--{name}-port=0" for name in ("http", "grpc", "metrics")]
    log = tmp_path / "server.log"
    command = [str(clean / "ge-backend"), "serve", "--model-repository", str(version.parents[1])]
    command += [*ports, "--exit-timeout=20", f"--log-file={log}"]
    environment = os.environ | {"GE_CACHE_DIR": str(tmp_path / "cache")}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as serve:
        try:
            said = [serve.stdout.readline().split() for _ in range(4)]
            assert said[0][:2] == ["ge-backend:", "ready"], log.read_text()
            given = grpcclient.InferInput("x", [1, 3], "FP32")
            given.set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
            with grpcclient.InferenceServerClient(dict(said[1:])["grpc"]) as client:
                found = client.infer("double", [given]).as_numpy("y")
            assert found.tolist() == [[2, 4, 6]]
        finally:
            serve.send_signal(signal.SIGTERM)
            assert serve.wait(timeout=LIMIT_S) == 0
