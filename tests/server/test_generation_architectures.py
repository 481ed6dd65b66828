"""Language models of several architectures in one repository, on the real server."""

import json
import os
import signal
import urllib.request

import pytest
from benchmarks.trust.faults import executors

from builders.language import make

KINDS = ("gemma2", "olmo2", "phi3", "gpt2")
CONFIG = """backend: "ge"
parameters { key: "kv_cache_bytes" value { string_value: "1MiB" } }
"""


@pytest.fixture(scope="module")
def server(triton_server, tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        make(repository / kind / "1", kind)
        (repository / kind / "config.pbtxt").write_text(CONFIG)
    return triton_server(repository)


def written(server, kind):
    """Return the tokens that a model writes greedily after three others."""
    body = {"input_ids": [3, 4, 5], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://{server.http}/v2/models/{kind}/generate", json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["output_ids"]


def test_they_load_together_also_after_an_executors_death(server):
    """Each writes what it wrote before; all of them need transformers in the new process."""
    before = {kind: written(server, kind) for kind in KINDS}
    assert all(len(ids) == 4 for ids in before.values())
    for pid in executors(server):
        os.kill(pid, signal.SIGKILL)
    assert {kind: written(server, kind) for kind in KINDS} == before
