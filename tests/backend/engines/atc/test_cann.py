"""Finding CANN, and running its compiler."""

import os
import signal
import subprocess

import pytest

from builders.cann import fake_cann
from ge_backend.engines.atc.cann import find_cann
from ge_backend.errors import DeviceUnavailable


@pytest.fixture
def find(tmp_path):
    """Return a function that looks for CANN in this environment, below this folder."""

    def find(**environment):
        return find_cann({"HOME": str(tmp_path / "home"), **environment}, tmp_path / "Ascend")

    return find


def test_the_places_in_their_order(find, tmp_path):
    """PATH, the two variables, then where root and then where others install it."""
    home = tmp_path / "home" / "Ascend" / "ascend-toolkit" / "latest"
    shared = tmp_path / "Ascend" / "cann"
    others = [tmp_path / name for name in ("toolkit", "stated", "path")]
    environment = {}
    with pytest.raises(DeviceUnavailable):
        find()
    for root, name in [
        (home, ""),
        (shared, ""),
        (others[0], "ASCEND_TOOLKIT_HOME"),
        (others[1], "ASCEND_HOME_PATH"),
        (others[2], "PATH"),
    ]:
        fake_cann(root)
        if name:
            environment[name] = str(root / "bin") if name == "PATH" else str(root)
        assert find(**environment).atc == root / "bin" / "atc"


def test_without_one_the_message_says_where_it_was_looked_for(find, tmp_path):
    """And what to do on a machine that has none."""
    with pytest.raises(DeviceUnavailable) as caught:
        find(ASCEND_HOME_PATH=str(tmp_path / "nowhere"), PATH=str(tmp_path))
    said = str(caught.value)
    assert str(tmp_path / "nowhere") in said
    assert str(tmp_path / "home" / "Ascend" / "ascend-toolkit" / "latest") in said
    assert "ge-backend compile" in said


def test_the_version_is_that_of_all_packages(find, tmp_path):
    """Kernels are a package of their own; where it was installed does not matter."""
    here, there = (fake_cann(tmp_path / name, "8.5.0") for name in ("here", "there"))
    newer = fake_cann(tmp_path / "newer", "9.0.0")
    versions = [find(ASCEND_HOME_PATH=str(root)).version for root in (here, there, newer)]
    assert versions[0] == "ascend_ops version=8.5.0, ascend_toolkit version=8.5.0"
    assert versions[1] == versions[0]
    assert "9.0.0" in versions[2]


@pytest.mark.parametrize(
    ("file", "line", "version"),
    [
        ("version.cfg", "compiler_running_version=[7.6.0.1.220:8.0.0]", "8.0.0"),
        ("compiler/version.info", "Version=7.6.0.1.220", "7.6.0.1.220"),
    ],
)
def test_older_versions_say_it_elsewhere(find, tmp_path, file, line, version):
    """Other lines of these files are not looked at."""
    root = fake_cann(tmp_path / "old")
    for info in root.glob("x86_64-linux/*"):
        info.unlink()
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text(f"# a comment\n{line}\nrequired_opp_abi_version=1\n")
    found = find(ASCEND_HOME_PATH=str(root)).version
    assert version in found
    assert "opp_abi" not in found


def test_a_compiler_that_names_no_version(find, tmp_path):
    """Another file is another version."""
    root = fake_cann(tmp_path / "odd")
    for info in root.glob("x86_64-linux/*"):
        info.unlink()
    before = find(ASCEND_HOME_PATH=str(root)).version
    atc = root / "bin" / "atc"
    atc.write_text(atc.read_text() + "# patched\n")
    assert before.startswith("unknown")
    assert find(ASCEND_HOME_PATH=str(root)).version != before


def test_a_program_that_only_has_its_name(find, tmp_path):
    """One that belongs to a known version comes before it."""
    game = tmp_path / "games" / "atc"
    game.parent.mkdir()
    game.write_text("#!/bin/sh\n")
    game.chmod(0o755)
    assert find(PATH=str(game.parent)).atc == game
    root = fake_cann(tmp_path / "Ascend" / "cann")
    assert find(PATH=str(game.parent)).atc == root / "bin" / "atc"


def test_a_link_to_the_compiler(find, tmp_path):
    """Its version and script are above the file that it links to."""
    root = fake_cann(tmp_path / "real")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "atc").symlink_to(root / "bin" / "atc")
    found = find(PATH=str(tmp_path / "links"))
    assert "8.5.0" in found.version
    assert found.set_env == root / "set_env.sh"


def run(cann, output, *arguments):
    """Return the status and what was printed; the pipe stays open meanwhile."""
    with (
        output.open("w") as file,
        subprocess.Popen(
            cann.command(arguments), stdin=subprocess.PIPE, stdout=file, start_new_session=True
        ) as process,
    ):
        status = process.wait()
    return status, output.read_text()


@pytest.fixture
def shell_cann(find, tmp_path):
    """Return a function that makes a CANN whose compiler is this shell script."""

    def make(script, set_env="export SEEN=\"sourced with '$1'\"\n"):
        root = fake_cann(tmp_path / "cann")
        (root / "bin" / "atc").write_text(f"#!/bin/bash\n{script}\n")
        (root / "set_env.sh").write_text(set_env)
        return find(ASCEND_HOME_PATH=str(root))

    return make


def test_the_environment_is_that_of_its_script(shell_cann, tmp_path):
    """The script does not see the compiler's arguments; what it prints is dropped."""
    cann = shell_cann('echo "$SEEN: $*"; exit 7', "echo noise; export SEEN=\"'$1'\"\n")
    done = run(cann, tmp_path / "output", "--input_shape=a:1;b:2", "with space")
    assert done == (7, "'': --input_shape=a:1;b:2 with space\n")
    assert cann.shown(["--x=a;b"]).startswith(f". {cann.set_env} && {cann.atc} '--x=a;b'")


def test_without_a_script(shell_cann, tmp_path):
    """Whoever started us has set it up then."""
    cann = shell_cann('echo "[$SEEN]"')
    cann.set_env.unlink()
    plain = type(cann)(atc=cann.atc, set_env=None, version=cann.version)
    assert run(plain, tmp_path / "output") == (0, "[]\n")
    assert plain.shown(["--x=1"]) == f"{cann.atc} --x=1"


def test_what_it_leaves_behind_ends_too(shell_cann, tmp_path):
    """Processes of the compiler end when the pipe is closed, which the kernel does if we die."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Both hold the fifo open for writing, so that its end says that both are gone.
    cann = shell_cann(f"sleep 1000 >{fifo} & echo up >{fifo}; sleep 1000 >{fifo}")
    process = subprocess.Popen(
        cann.command([]), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    with fifo.open() as reading:
        assert reading.readline() == "up\n"
        process.stdin.close()
        assert reading.read() == ""
    assert process.wait() == -signal.SIGKILL
