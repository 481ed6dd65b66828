"""The lines of Python in the documentation do what the pages say, on the real server."""

import contextlib

import numpy as np
import openai
import pytest
import tritonclient.http as httpclient
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from builders.null_models import comes_true
from builders.pages import PAGES, blocks
from ge_openai.front import OpenAIFront
from ge_openai.options import FrontOptions

# Python that is not run here -> what runs it.
ELSEWHERE = {
    "docs/from_python_model.md": "test_docs_from_python_model.py",
    "docs/tutorial.md": "test_docs_tutorial.py",
}
SNIPPETS = {
    block.page: block.text
    for page in PAGES
    for block in blocks(page)
    if not block.language and ("client." in block.text or block.text.startswith("import "))
}


@pytest.fixture(scope="module")
def server(triton_server, made_models):
    """A real server with every model of model_repository/."""
    return triton_server(made_models)


def test_every_page_with_python_is_run():
    """Those with blocks that say so, and those with lines of a client."""
    said = {block.page for page in PAGES for block in blocks(page) if block.language == "python"}
    assert said == set(ELSEWHERE)
    assert set(SNIPPETS) == {
        "README.md",  # run by test_openai.py
        "docs/ensembles.md",
        "docs/openai.md",
        "docs/sequences.md",
        "docs/shared_memory.md",
    }


def left_after_unregistering(client):
    """Have the server forget all regions; return those that it still has."""
    with contextlib.suppress(InferenceServerException):
        client.unregister_system_shared_memory()
    return client.get_system_shared_memory_status()


def test_shared_memory_as_the_page_has_it(server):
    """An input and an output in one region; the answer is there."""
    ids = np.arange(7)
    tokens = httpclient.InferInput("input_ids", [1, len(ids)], "INT64")
    scores = httpclient.InferRequestedOutput("scores")
    with httpclient.InferenceServerClient(server.http) as client:
        names = {"shm": shm, "client": client, "ids": ids, "tokens": tokens, "scores": scores}
        names |= {"nbytes": 8192, "room_for_scores": 4096}
        try:
            exec(SNIPPETS["docs/shared_memory.md"], names)
            client.infer("token_scores", [tokens], outputs=[scores])
            found = shm.get_contents_as_numpy(names["region"], np.float32, [7, 4], 4096).copy()
            tokens.set_data_from_numpy(ids[np.newaxis])
            expected = client.infer("token_scores", [tokens]).as_numpy("scores")[0]
        finally:
            # The server may hold a region for a moment after the answer.
            assert comes_true(lambda: not left_after_unregistering(client))
            shm.destroy_shared_memory_region(names["region"])
    assert np.array_equal(found, expected)


def test_labels_as_the_page_has_them(server):
    """A class is score, index and label, in one text."""
    names = {"client": httpclient}
    exec(SNIPPETS["docs/ensembles.md"], names)
    text = httpclient.InferInput("text", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"Rain is expected"]], object))
    with httpclient.InferenceServerClient(server.http) as client:
        found = client.infer("text_classifier", [text], outputs=[names["wanted"]])
    score, index, label = found.as_numpy("scores")[0, 0].split(b":")
    assert (float(score) > 0.9, index, label) == (True, b"2", b"weather")


def test_sequences_as_the_page_has_them(server):
    """Each answer is the sum of what the sequence has sent."""
    number, answers = httpclient.InferInput("INPUT", [1, 1], "FP32"), []

    class Client(httpclient.InferenceServerClient):
        def infer(self, *given, **named):
            answers.append(super().infer(*given, **named).as_numpy("OUTPUT").tolist())

    with Client(server.http) as client:
        exec(SNIPPETS["docs/sequences.md"], {"np": np, "client": client, "number": number})
    assert answers == [[[1]], [[3]], [[6]]]


def test_openais_client_as_the_page_has_it(server, made_models, capsys):
    """The text comes piece by piece, here from a model of this repository's."""
    options = FrontOptions(url=server.grpc, metrics=server.metrics, port=0)
    with OpenAIFront(options) as front:
        text = SNIPPETS["docs/openai.md"].replace("http://localhost:9000", front.url)
        exec(text.replace('"writer"', '"tiny_writer"'), {"OpenAI": openai.OpenAI})
    assert capsys.readouterr().out.strip()
