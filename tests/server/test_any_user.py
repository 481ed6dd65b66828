"""The server and the commands run as any user id: one without a name, without a home.

That is how Kubernetes with `runAsUser` and OpenShift start containers.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpcclient

from ge_backend.executor.process.reap_orphans import region_of

UID = 12345  # no name in /etc/passwd
# This interpreter may lie in root's home; the capability lets the user read, and nothing more.
AS_USER = [
    "setpriv",
    f"--reuid={UID}",
    f"--regid={UID}",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
]
COMMAND = [sys.executable, "-m", "ge_tools.main"]
LIMIT_S = 120.0

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user"
)


def as_user(home, *arguments, **how):
    """Start a command as the user, with HOME set so; None: not at all."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"HOME", "USER", "LOGNAME", "XDG_CACHE_HOME"}
    }
    if home is not None:
        environment["HOME"] = home
    return subprocess.Popen(
        [*AS_USER, *COMMAND, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        **how,
    )


@pytest.fixture
def repository(made_models):
    """Two models in a folder that everybody may read: the server asks with access(2)."""
    folder = Path(tempfile.mkdtemp(prefix="ge-any-user-"))
    for name in ("add_sub", "lengths_sum"):
        shutil.copytree(made_models / name, folder / name)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("home", [None, "/"], ids=["no HOME", "HOME is /"])
def test_the_server_serves_as_a_user_without_a_name(installation, repository, home):
    """ONNX and torch models answer right, nobody else reads along, and the end is in order."""
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    serve = as_user(home, "serve", "--model-repository", repository, *ports)
    printed, deadline = [], time.monotonic() + LIMIT_S
    try:
        for line in serve.stdout:
            printed.append(line)
            if line.startswith("  grpc") or time.monotonic() > deadline:
                break
        assert printed[-1].startswith("  grpc"), "".join(printed)
        with grpcclient.InferenceServerClient(printed[-1].split()[1]) as client:
            x = np.ones((1, 16), np.float32)
            tensors = [
                grpcclient.InferInput(name, x.shape, "FP32") for name in ("INPUT0", "INPUT1")
            ]
            for tensor in tensors:
                tensor.set_data_from_numpy(x)
            assert client.infer("add_sub", tensors).as_numpy("OUTPUT0").tolist() == [[2.0] * 16]
        assert set(modes_of_regions(serve.pid)) == {0o600}
    finally:
        serve.terminate()
        output, _ = serve.communicate(timeout=LIMIT_S)
    assert serve.returncode == 0, output


def modes_of_regions(pid):
    """Return the mode of each stub's shared memory, through which tensors of clients go."""
    regions = [region_of(child.pid) for child in psutil.Process(pid).children(recursive=True)]
    return [stat.S_IMODE(region.stat().st_mode) for region in regions if region is not None]


@pytest.mark.parametrize("home", [None, "/"], ids=["no HOME", "HOME is /"])
def test_commands_run_as_a_user_without_a_name(made_models, home):
    """A command that opens a model has no traceback for a user without a home."""
    command = as_user(home, "buckets", "--model", made_models / "lengths_sum")
    output, _ = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 0, output
    assert "Traceback" not in output
