"""How the stubs of a server end, which its exit code hides: by the kernel's word."""

import os
import signal
import subprocess

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from builders.ends import Ends
from builders.servers import server_options
from ge_backend.executor.process.host_processes import stubs_of
from ge_tools.tritonserver.server import TritonServer

# A graph, sequences with two instances, an ensemble in one, and text.
MODELS = ("add_sub", "accumulator", "text_classifier_fused", "tiny_writer")


def test_the_kernels_word_is_read():
    """An exit code, a signal that ends and one that does not are told apart."""
    script = "sleep 60 & echo $!; (read line; exit 3) <&3 & echo $!; wait"
    with subprocess.Popen(
        ["bash", "-c", f"exec 3<&0; {script}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        killed, exits = int(parent.stdout.readline()), int(parent.stdout.readline())
        ends = Ends([killed, exits])
        os.kill(exits, signal.SIGCONT)
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        os.kill(killed, signal.SIGSEGV)
        assert ends.wait() == {killed: "SIGSEGV", exits: "exit 3"}


@pytest.fixture(scope="module")
def server(installation, example_models, tmp_path_factory):
    options = server_options(
        example_models,
        log_file=tmp_path_factory.mktemp("log") / "server.log",
        arguments=("--model-control-mode=explicit", *(f"--load-model={name}" for name in MODELS)),
    )
    with TritonServer(installation, options) as server:
        yield server


def test_stubs_end_by_themselves_at_an_orderly_stop(server):
    """Each stub that has served, and has figures published, exits with 0 and by no signal."""
    inputs = [grpcclient.InferInput(name, [1, 16], "FP32") for name in ("INPUT0", "INPUT1")]
    for given in inputs:
        given.set_data_from_numpy(np.ones((1, 16), np.float32))
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.infer("add_sub", inputs)
    stubs = stubs_of(server.pid)
    assert len(stubs) >= len(MODELS)
    try:
        ends = Ends([stub.pid for stub in stubs])
    except PermissionError as error:  # by a container's seccomp profile, say
        pytest.skip(f"ptrace is not allowed here: {error}")
    server.stop()
    assert ends.wait() == {stub.pid: "exit 0" for stub in stubs}
