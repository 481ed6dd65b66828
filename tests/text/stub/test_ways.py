"""How long the way of a text is, which bounds keep from growing again.

`pytest tests/text/stub/test_ways.py -s` prints it. Those of other requests: tests/backend/host.
"""

import json
import socket
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from builders.null_models import comes_true
from builders.way import Walk
from fakes.language_model import FakeLanguageModel, expected_tokens
from fakes.null_device import NullDevice
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.server.executor import Executor
from ge_backend.metrics import Recorder
from ge_backend.model.config.settings import GENERATION_SETTINGS
from ge_text.engine.parameters import parse_parameters
from ge_text.models.open import OpenedLanguage
from ge_text.protocol import ServiceSpec
from ge_text.service import engine as text_engine
from ge_text.stub.client import GenerationClient

# Files and functions at most, which is what they are: where the way gets shorter, these follow.
FILES, FUNCTIONS = 30, 150
# Threads that look around now and then, whatever is asked.
BESIDE = ("heartbeat", "watch", "generation-watch")


class Sender:
    """Takes the responses to a request."""

    def __init__(self, final):
        self.final, self.responses, self.over = final, [], threading.Event()

    def send(self, response, flags=0):
        self.responses.append(response)
        if flags == self.final:
            self.over.set()

    def is_cancelled(self):
        return False


@pytest.fixture
def served(pb_utils, monkeypatch):
    """A walk, a model that generates text in this process, and its executor."""
    from ge_text.stub.instance import Generation

    def opened(asked):
        model = FakeLanguageModel(block_size=asked.block_size)
        return OpenedLanguage(
            model=model, tokenizer=None, sampling={}, compile_structure=None, engine="openvino"
        )

    def connect():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        executor.accept(theirs)
        return ExecutorConnection(ours)

    monkeypatch.setattr(text_engine, "open_language", opened)
    key = ServiceSpec(
        folder="/m/1",
        stamp="s",
        precision="origin",
        threads=0,
        priority=2,
        served_as="m",
        settings={setting.key: setting.default for setting in GENERATION_SETTINGS},
    ).key()
    walk = Walk(but=BESIDE)
    with walk.seeing_threads():
        executor = Executor(NullDevice(), linger_s=0.0)
        client = GenerationClient(connect, lambda: key)
        generation = Generation(client, Recorder(), SimpleNamespace(close=lambda: None))
    yield walk, generation, executor
    generation.close()
    executor.join()
    executor.close()


def test_a_text_of_two_tokens(served, pb_utils):
    """One prompt of three tokens alone, in one process; what is written is what was to come."""
    walk, generation, executor = served
    prompt, parameters = [9, 10, 11], {"max_tokens": 2, "seed": 1}

    def ask():
        request = pb_utils.InferenceRequest(
            [pb_utils.Tensor("input_ids", np.array([prompt], np.int64))], ("output_ids",)
        )
        request.parameters = lambda: json.dumps(parameters)
        request.get_response_sender = lambda: sender
        sender = Sender(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        generation.execute([request])
        assert sender.over.wait(20)
        assert comes_true(lambda: len(executor.lanes._free) == executor.lanes._count)
        (response,) = sender.responses
        (ids,) = response.output_tensors()
        assert ids.as_numpy().reshape(-1).tolist() == expected

    expected = expected_tokens(prompt, parse_parameters(parameters))
    ask()  # what is only done once is not of the way
    found = walk.of(ask)
    print(f"text of two tokens: {found.describe()}")
    assert found.files <= FILES
    assert len(found.functions) <= FUNCTIONS
