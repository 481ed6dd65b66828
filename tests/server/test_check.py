"""`ge-backend check` where a server is installed."""

import json
import re
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from builders.graphs import plus_one, write_model
from builders.hosted_ensembles import RIGHT, WRONG, write_hosted
from ge_tools.main import main


def test_check_proves_the_server_by_an_answer_and_this_machine_can_serve(installation, capsys):
    """The version is the running server's; a device and an engine work beside it."""
    code = main(["check", "--json"])

    findings = {
        (found["kind"], found["name"]): found for found in json.loads(capsys.readouterr().out)
    }
    server = findings["server", "tritonserver"]
    assert server["ok"], server["detail"]
    assert re.match(r"\d+\.\d+\.\d+ serves Python 3\.\d+ ", server["detail"])
    assert findings["device", "cpu"]["ok"]
    assert code == 0


def test_the_models_of_this_project_can_be_served_here(installation, made_models, capsys):
    """That there is no NPU and perhaps no GPU is no failure of theirs."""
    code = main(["check", str(made_models)])

    printed = capsys.readouterr().out
    assert code == 0, printed
    assert printed.splitlines()[-1] == (
        f"this machine has what the models in {made_models} need; their files were not loaded"
    )
    assert not re.search("(?m)^FAIL", printed)


@pytest.mark.skipif(
    Path("/dev/nvidiactl").exists(), reason="it is about a host without NVIDIA GPUs"
)
def test_a_model_with_instances_on_gpus_is_named_where_there_are_none(
    installation, tmp_path, capsys
):
    """This host then does not start, and says so in the words that the command looks for."""
    write_model(tmp_path, "on_gpu", "instance_group [ { kind: KIND_GPU } ]", plus_one(1))

    assert main(["check", str(tmp_path)]) == 1
    assert (
        "FAIL  model   on_gpu             its instance_group says KIND_GPU"
        in capsys.readouterr().out
    )


def test_the_host_refuses_the_ensembles_that_are_called_wrong_and_no_others(
    triton_server, tmp_path
):
    """What the command says of them it has from no server."""
    server = triton_server(
        write_hosted(tmp_path / "models"), arguments=("--model-control-mode=explicit",)
    )
    with grpcclient.InferenceServerClient(server.grpc) as client:
        for name in RIGHT:
            client.load_model(name)
        for name in WRONG:
            with pytest.raises(InferenceServerException, match=name):
                client.load_model(name)
