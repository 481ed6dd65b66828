"""`ge-backend check` where a server is installed."""

import json
import re

from ge_backend.cli.main import main


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
