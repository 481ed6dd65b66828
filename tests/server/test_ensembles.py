"""Ensembles of the host: what clients get is what the steps give by hand, whoever else asks."""

from __future__ import annotations

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from builders.graphs import graph, parameters, write_model
from builders.images import encoded, gradient

onnxruntime = pytest.importorskip("onnxruntime")
tokenizers = pytest.importorskip("tokenizers")

TEXT_MODELS = ("tokenizer", "text_encoder", "pooling", "classifier_head")
IMAGE_MODELS = ("preprocess", "shape_classifier")
ENSEMBLES = ("text_embedding", "text_classifier", "image_classifier")
WORDS = ("the", "team", "won", "a", "match", "rain", "and", "snow", "in", "bread", "zebra")
# So that requests that are sent together meet in a batch.
DELAY = "dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
BAD_TEXT = b"\xe9t\xe9"  # in Latin-1


HALVED = """
max_batch_size: 16
input [ { name: "x" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_INT64 dims: [ -1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 20000 }
"""


def halved():
    """Take x [batch, length] -> y [batch, frames]: every second value, and their count per row.

    As with a speech encoder, an output is shorter than the input, and only the graph knows how long.
    """
    nodes = [
        helper.make_node("Slice", ["x", "zero", "end", "one", "two"], ["y"]),
        helper.make_node("Add", ["input_lengths", "one"], ["more"]),
        helper.make_node("Div", ["more", "two"], ["count"]),
    ]
    integers = TensorProto.INT64
    return graph(
        nodes,
        [("x", integers, ["batch", "length"]), ("input_lengths", integers, ["batch"])],
        [("y", integers, ["batch", "frames"]), ("count", integers, ["batch"])],
        [
            (name, np.array([value]))
            for name, value in {"zero": 0, "one": 1, "two": 2, "end": 2**31}.items()
        ],
    )


@pytest.fixture(scope="module")
def models(made_models, tmp_path_factory):
    """The project's ensembles, and some with other settings."""
    models = tmp_path_factory.mktemp("models")
    for name in (*TEXT_MODELS, *IMAGE_MODELS, *ENSEMBLES):
        shutil.copytree(made_models / name, models / name)
    for name in ("tokenizer", "preprocess"):
        with (models / name / "config.pbtxt").open("a") as config:
            config.write(DELAY)
    file = (made_models / "tokenizer" / "1" / "tokenizer.json").read_bytes()
    for name, given in {
        "tokenizer_strict": {"tokenizer__overflow": "error", "tokenizer__max_length": 8},
        "tokenizer_long": {"tokenizer__max_length": 500},
        "tokenizer_plain": {
            "tokenizer__add_special_tokens": "false",
            "tokenizer__data_type": "INT32",
        },
    }.items():
        write_model(models, name, parameters(**given), file, "tokenizer.json")
    for name in ("tokenizer_strict", "tokenizer_long"):
        config = (models / "text_embedding" / "config.pbtxt").read_text()
        other = models / name.replace("tokenizer", "embedding")
        (other / "1").mkdir(parents=True)
        (other / "config.pbtxt").write_text(config.replace('"tokenizer"', f'"{name}"'))
    write_model(models, "halved", HALVED + parameters(lengths__frames="count", pad__y=-1), halved())
    ragged = json.dumps({"resize": {"shortest": 8}}).encode()
    write_model(models, "preprocess_ragged", "", ragged, "image.json")
    write_model(models, "tokenizer_wrong", parameters(tokenizer__speed="1"), file, "tokenizer.json")
    return models


@pytest.fixture(scope="module")
def server(triton_server, models):
    return triton_server(models, arguments=("--exit-on-error=false", "--strict-readiness=false"))


def ask(client, model, name, rows, *outputs, description=None):
    """Return the outputs, by name, of one request with these BYTES rows."""
    known = {} if description is None else {"description": [description] * len(rows)}
    given = []
    for tensor, texts in {name: rows, **known}.items():
        given.append(grpcclient.InferInput(tensor, [len(texts), 1], "BYTES"))
        given[-1].set_data_from_numpy(np.array([[text] for text in texts], object))
    result = client.infer(model, given)
    return {output: result.as_numpy(output) for output in outputs}


def together(jobs):
    """Run all jobs at once; return their results or errors in order."""

    def settled(job):
        try:
            return job()
        except InferenceServerException as error:
            return error

    with ThreadPoolExecutor(len(jobs)) as threads:
        return list(threads.map(settled, jobs))


def refusal(call):
    """Return the status and text of the error that a call ends with."""
    with pytest.raises(InferenceServerException) as raised:
        call()
    return raised.value.status(), raised.value.message()


class Texts:
    """The steps of the text ensembles by hand: one text at a time, without padding."""

    def __init__(self, models):
        path = models / "tokenizer" / "1" / "tokenizer.json"
        self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self.sessions = {
            name: onnxruntime.InferenceSession(str(models / name / "1" / "model.onnx"))
            for name in ("text_encoder", "pooling", "classifier_head")
        }

    def ids(self, text):
        return self.tokenizer.encode(text).ids

    def run(self, text, head):
        ids = np.array([self.ids(text)])
        mask = np.ones_like(ids)
        tokens = {"input_ids": ids, "attention_mask": mask}
        (hidden,) = self.sessions["text_encoder"].run(None, tokens)
        feed = {"hidden": hidden, "attention_mask": mask}
        return self.sessions[head].run(None, feed)[0][0]


@pytest.fixture(scope="module")
def texts(models):
    return Texts(models)


def random_requests(count, seed):
    """Return lists of one to three texts of one to sixty words, now and then an empty one."""
    generator = random.Random(seed)

    def text():
        length = generator.choice([0, 1, 2, 3, 5, 8, 13, 21, 40, 60])
        return " ".join(generator.choices(WORDS, k=length))

    return [[text() for _ in range(generator.choice([1, 1, 2, 3]))] for _ in range(count)]


@pytest.mark.parametrize(
    ("ensemble", "head", "output"),
    [("text_embedding", "pooling", "embedding"), ("text_classifier", "classifier_head", "scores")],
)
def test_concurrent_texts_get_what_the_steps_give_by_hand(client, texts, ensemble, head, output):
    """Unequal texts, alone or several in a request, share batches in every step."""
    requests = random_requests(40, seed=3)
    replies = together(
        [
            lambda rows=rows: ask(client, ensemble, "text", [r.encode() for r in rows], output)
            for rows in requests
        ]
    )
    for rows, reply in zip(requests, replies, strict=True):
        expected = np.stack([texts.run(text, head) for text in rows])
        np.testing.assert_allclose(reply[output], expected, atol=1e-5)


def test_each_request_is_as_long_as_its_own_longest_text(client, texts):
    """Requests tokenised in one batch do not see each other's lengths."""
    requests = random_requests(30, seed=4)
    outputs = ("input_ids", "attention_mask", "token_type_ids")
    replies = together(
        [
            lambda rows=rows: ask(client, "tokenizer", "text", [r.encode() for r in rows], *outputs)
            for rows in requests
        ]
    )
    for rows, reply in zip(requests, replies, strict=True):
        ids = [texts.ids(text) for text in rows]
        longest = max(map(len, ids))
        assert reply["input_ids"].tolist() == [r + [0] * (longest - len(r)) for r in ids]
        assert reply["attention_mask"].sum(axis=1).tolist() == [len(row) for row in ids]
        assert not reply["token_type_ids"].any()
        assert all(array.dtype == np.int64 for array in reply.values())


def test_an_empty_configuration_is_filled_in_from_the_tokenizer(client):
    """One text per row in; everything else is known from the file, which the model can tell."""
    config = client.get_model_config("tokenizer", as_json=True)["config"]
    assert config["max_batch_size"] == 32
    assert "dynamic_batching" in config
    given = {item["name"]: (item["data_type"], item["dims"]) for item in config["input"]}
    assert given == {"text": ("TYPE_STRING", ["1"]), "description": ("TYPE_STRING", ["1"])}
    assert [item["name"] for item in config["input"] if item.get("optional")] == ["description"]
    assert [item["name"] for item in config["output"]] == [
        "input_ids",
        "attention_mask",
        "token_type_ids",
        "description",
    ]


def test_a_tokenizer_says_what_it_is_to_who_does_not_know(client, texts):
    """Whoever knows gets tokens, and both may be asked at once."""
    said = ask(client, "tokenizer", "text", [b""], "description", description=b"")
    described = json.loads(said["description"][0, 0])
    made = tokenizers.Tokenizer.from_str(described["tokenizer"])
    assert made.encode("the team").ids == texts.ids("the team")
    assert described["options"] == {}
    known = described["id"].encode()
    reply = ask(client, "tokenizer", "text", [b"the team"], "input_ids", description=known)
    assert reply["input_ids"].tolist() == [texts.ids("the team")]


def test_options_of_the_tokenizer(client, texts):
    """Without special tokens, as INT32; a text without any token is a row of none."""
    plain = ask(client, "tokenizer_plain", "text", [b"the team"], "input_ids")["input_ids"]
    assert plain.dtype == np.int32
    assert plain.tolist() == [texts.ids("the team")[1:-1]]
    empty = ask(client, "tokenizer_plain", "text", [b""], "input_ids")["input_ids"]
    assert empty.shape == (1, 0)


def test_an_unknown_option_stops_the_model_with_the_known_ones(server, client):
    """Beside it the others are served."""
    index = client.get_model_repository_index(as_json=True)["models"]
    reason = next(m["reason"] for m in index if m["name"] == "tokenizer_wrong")
    assert "'tokenizer.speed' is unknown; known are tokenizer.max_length" in reason


@pytest.mark.parametrize("ensemble", ["text_embedding", "text_classifier"])
def test_text_that_is_not_utf8_fails_alone_with_its_row(client, texts, ensemble):
    """Its neighbours in the batch get what they would get without it."""
    output, head = {
        "text_embedding": ("embedding", "pooling"),
        "text_classifier": ("scores", "classifier_head"),
    }[ensemble]
    requests = [[row.encode() for row in rows] for rows in random_requests(20, seed=5)]
    for position in (3, 9, 10):
        requests[position] = [b"snow", BAD_TEXT]
    replies = together(
        [lambda rows=rows: ask(client, ensemble, "text", rows, output) for rows in requests]
    )
    for rows, reply in zip(requests, replies, strict=True):
        if BAD_TEXT in rows:
            assert reply.status() == "StatusCode.INVALID_ARGUMENT"
            assert "row 1: the text is not UTF-8" in reply.message()
            assert ensemble in reply.message()
        else:
            expected = np.stack([texts.run(row.decode(), head) for row in rows])
            np.testing.assert_allclose(reply[output], expected, atol=1e-5)


def test_a_long_text_is_cut(client, texts):
    """Where the tokenizer cuts, the ensemble answers for what is left."""
    text = "snow " * 1000
    assert len(texts.ids(text)) == 128
    reply = ask(client, "text_embedding", "text", [text.encode()], "embedding")
    np.testing.assert_allclose(reply["embedding"][0], texts.run(text, "pooling"), atol=1e-5)


def test_a_text_that_is_too_long_is_refused_by_the_tokenizer(client, texts):
    """If it is told to, rather than cutting; shorter ones beside it are answered."""
    long, short = b"snow " * 7, b"snow " * 6
    replies = together(
        [
            lambda text=text: ask(client, "embedding_strict", "text", [text], "embedding")
            for text in (long, short) * 4
        ]
    )
    for refused, answered in zip(replies[::2], replies[1::2], strict=True):
        assert refused.status() == "StatusCode.INVALID_ARGUMENT"
        assert "row 0: the text has more than 8 tokens" in refused.message()
        expected = texts.run(short.decode(), "pooling")
        np.testing.assert_allclose(answered["embedding"][0], expected, atol=1e-5)


def test_a_text_that_is_too_long_is_refused_by_the_encoder(client, texts):
    """A later step that refuses a request does not disturb its neighbours either."""
    long, short = b"snow " * 300, b"rain"
    replies = together(
        [
            lambda text=text: ask(client, "embedding_long", "text", [text], "embedding")
            for text in (long, short) * 4
        ]
    )
    for refused, answered in zip(replies[::2], replies[1::2], strict=True):
        assert refused.status() == "StatusCode.INVALID_ARGUMENT"
        assert "axis 'sequence' is 302, the largest bucket is 128; send at most that" in (
            refused.message()
        )
        expected = texts.run(short.decode(), "pooling")
        np.testing.assert_allclose(answered["embedding"][0], expected, atol=1e-5)


def test_over_http_the_status_is_bad_request(server):
    """The same errors, as HTTP has them."""
    with httpclient.InferenceServerClient(server.http) as client:
        given = httpclient.InferInput("text", [1, 1], "BYTES")
        given.set_data_from_numpy(np.array([[BAD_TEXT]], object))
        status, text = refusal(lambda: client.infer("text_classifier", [given]))
    assert status == "400"
    assert "row 0: the text is not UTF-8" in text


class Images:
    """The steps of the image ensemble by hand, one image at a time."""

    def __init__(self, models):
        path = models / "shape_classifier" / "1" / "model.onnx"
        self.session = onnxruntime.InferenceSession(str(path))

    def run(self, file):
        from io import BytesIO

        from PIL import Image

        image = Image.open(BytesIO(file)).convert("RGB")
        short = min(image.size)
        width, height = (32 * side // short for side in image.size)
        values = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
        top, left = round((height - 32) / 2), round((width - 32) / 2)
        values = values[top : top + 32, left : left + 32].transpose(2, 0, 1)
        pixels = ((values / 255 - 0.5) / 0.5).astype(np.float32)
        return self.session.run(None, {"pixels": pixels[np.newaxis]})[0][0]


@pytest.fixture(scope="module")
def images(models):
    return Images(models)


def test_concurrent_images_get_what_the_steps_give_by_hand(client, images):
    """Files of all sizes and both kinds; a broken one is refused alone, with its row."""
    generator = random.Random(6)
    files = [
        encoded(gradient(generator.randint(5, 90), generator.randint(5, 90), seed), kind)
        for seed in range(14)
        for kind in ("JPEG", "PNG")
    ]
    broken = files[0][: len(files[0]) // 2]
    requests = [[file] for file in files[:20]] + [files[20:24], files[24:]]
    requests[5:5] = [[broken], [b""], [files[1], broken]]
    replies = together(
        [
            lambda rows=rows: ask(client, "image_classifier", "image", rows, "scores")
            for rows in requests
        ]
    )
    for rows, reply in zip(requests, replies, strict=True):
        bad = [at for at, file in enumerate(rows) if file in (broken, b"")]
        if bad:
            assert reply.status() == "StatusCode.INVALID_ARGUMENT"
            assert f"row {bad[0]}: the image of {len(rows[bad[0]])} bytes" in reply.message()
        else:
            expected = np.stack([images.run(file) for file in rows])
            np.testing.assert_allclose(reply["scores"], expected, atol=1e-5)


def test_outputs_are_cut_to_what_another_output_tells(client):
    """Requests of all lengths share batches, and get as many values as the graph says, no more."""

    def halve(rows):
        given = grpcclient.InferInput("x", [len(rows), len(rows[0])], "INT64")
        given.set_data_from_numpy(np.array(rows))
        return client.infer("halved", [given]).as_numpy("y")

    requests = [
        [[n] * length] * rows for n, length in enumerate((1, 2, 9, 30, 5)) for rows in (1, 2)
    ]
    replies = together([lambda rows=rows: halve(rows) for rows in requests * 2])
    for rows, reply in zip(requests * 2, replies, strict=True):
        assert reply.tolist() == [row[::2] for row in rows]


def test_images_keep_sizes_of_their_own(client):
    """Requests of one batch come back each at its own size; rows of one request are padded."""
    sizes = [(8, 20), (30, 8), (8, 8)]
    files = [encoded(gradient(*size, seed)) for seed, size in enumerate(sizes)]
    replies = together(
        [
            lambda rows=rows: ask(
                client, "preprocess_ragged", "image", rows, "pixels", "height", "width"
            )
            for rows in [[files[0]], [files[1]], [files[2]], files]
        ]
    )
    for size, reply in zip(sizes, replies, strict=False):
        assert reply["pixels"].shape == (1, 3, *size)
    whole = replies[3]
    assert whole["pixels"].shape == (3, 3, 30, 20)
    assert np.hstack([whole["height"], whole["width"]]).tolist() == [list(size) for size in sizes]
    for row, (height, width) in enumerate(sizes):
        alone = replies[row]["pixels"][0]
        assert np.array_equal(whole["pixels"][row, :, :height, :width], alone)
