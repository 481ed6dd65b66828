"""An imported encoder answers texts, on the real server, as its own library does."""

import json
import shutil
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from builders.checkpoints import (
    LABELS,
    LENGTH,
    WIDTH,
    as_sentence_encoder,
    write_checkpoint,
    write_words,
)
from ge_openai.front import OpenAIFront
from ge_openai.options import FrontOptions
from ge_tools.main import main

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

FUSED = """backend: "ge"
instance_group [ { kind: KIND_CPU } ]
parameters { key: "fuse" value: { string_value: "ranker" } }
"""
TEXTS = ("rain and wind", "Goal!", "bread with soup " * 30, "", " \tRAIN snow\n")


@pytest.mark.parametrize("packed", [[], ["--packed"]], ids=["exported", "packed"])
@pytest.mark.parametrize(
    ("kind", "task", "pooling"),
    [("Bert", "Model", "mean_tokens"), ("Qwen3", "ForCausalLM", "lasttoken")],
)
def test_texts_are_embedded_as_transformers_embeds_them(
    triton_server, tmp_path, capsys, packed, kind, task, pooling
):
    """Short ones, an empty one, and one that is longer than the checkpoint takes, all at once.

    A decoder's body is saved under the name of the whole, and its last token is the tokenizer's.
    The tokenizer tells capitals and white space apart; sentence-transformers, since 5.4, leaves
    the second to it.
    """
    import torch
    import transformers

    folder = write_checkpoint(tmp_path / "weather", kind=kind, task=task)
    as_sentence_encoder(folder, pooling, max_seq_length=LENGTH, do_lower_case=True)
    write_words(folder, exact=True)
    assert main(["import", str(folder), "--into", str(tmp_path / "models"), *packed]) == 0
    assert "largest difference from transformers" in capsys.readouterr().out

    server = triton_server(tmp_path / "models")
    column = np.array([[text.encode()] for text in TEXTS], object)
    given = grpcclient.InferInput("text", column.shape, "BYTES")
    given.set_data_from_numpy(column)
    with grpcclient.InferenceServerClient(server.grpc) as client:
        found = client.infer("weather", [given]).as_numpy("sentence_embedding")

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for text, row in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            encoded = tokenizer(text.lower(), truncation=True, return_tensors="pt")
            hidden = model(**encoded).last_hidden_state[0]
        pooled = hidden[-1] if pooling == "lasttoken" else hidden.mean(0)
        expected = torch.nn.functional.normalize(pooled, dim=0).numpy()
        np.testing.assert_allclose(row, expected, atol=1e-5)
    assert found.shape == (len(TEXTS), WIDTH)


@pytest.mark.parametrize("packed", [[], ["--packed"]], ids=["exported", "packed"])
def test_pairs_of_texts_are_scored_as_transformers_scores_them(triton_server, tmp_path, packed):
    """A query beside each of its documents, in one request; some are cut."""
    import torch
    import transformers

    folder = write_checkpoint(tmp_path / "ranker", classifier=True)
    into = ["--into", str(tmp_path / "models"), "--pairs", *packed]
    assert main(["import", str(folder), *into]) == 0
    server = triton_server(tmp_path / "models")
    documents = ("snow", "match goal team", "soup and bread " * 20, "")
    given = []
    for name, texts in (("text", ["Rain or wind"] * len(documents)), ("text_pair", documents)):
        column = np.array([[text.encode()] for text in texts], object)
        given.append(grpcclient.InferInput(name, column.shape, "BYTES"))
        given[-1].set_data_from_numpy(column)
    with grpcclient.InferenceServerClient(server.grpc) as client:
        found = client.infer("ranker", given).as_numpy("scores")

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for document, row in zip(documents, found, strict=True):
        with torch.inference_mode():
            # As a batch of one: alone an empty second text is taken for none.
            encoded = tokenizer(["Rain or wind"], [document], truncation=True, return_tensors="pt")
            expected = model(**encoded).logits[0].numpy()
        np.testing.assert_allclose(row, expected, atol=1e-5)
    assert found.shape == (len(documents), len(LABELS))


@pytest.mark.parametrize("packed", [[], ["--packed"]], ids=["exported", "packed"])
@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
def test_a_ranker_ranks_documents_by_the_api(triton_server, tmp_path, packed, activation):
    """Its scores go through what its folder says, also where its steps run inside one model."""
    import torch
    import transformers

    folder = write_checkpoint(tmp_path / "ranker", classifier=True, labels=["relevant"])
    config = json.loads((folder / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": f"torch.nn.modules.{activation}"}
    (folder / "config.json").write_text(json.dumps(config))
    models = tmp_path / "models"
    assert main(["import", str(folder), "--into", str(models), "--pairs", *packed]) == 0
    (models / "fused" / "1").mkdir(parents=True)
    said = (models / "ranker" / "config.pbtxt").read_text()
    own = said[said.index("parameters") :] if "parameters" in said else ""
    (models / "fused" / "config.pbtxt").write_text(f"{FUSED}{own}")
    server = triton_server(models)
    documents = ["snow", "match goal team", "soup and bread " * 20, ""]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        pairs = [["Rain or wind"] * len(documents), documents]
        encoded = tokenizer(*pairs, truncation=True, padding=True, return_tensors="pt")
        truth = getattr(torch.nn, activation)()(model(**encoded).logits[:, 0]).numpy()
    with OpenAIFront(FrontOptions(url=server.grpc, port=0)) as front:
        for name in ("ranker", "fused"):
            body = {"model": name, "query": "Rain or wind", "documents": documents}
            request = urllib.request.Request(
                f"{front.url}/v1/rerank",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                told = json.load(answer)
            assert [each["index"] for each in told["results"]] == np.argsort(-truth).tolist()
            scores = [each["relevance_score"] for each in told["results"]]
            np.testing.assert_allclose(scores, sorted(truth, reverse=True), atol=1e-5)
            assert told["usage"]["total_tokens"] == int(encoded["attention_mask"].sum())


@pytest.mark.parametrize(
    ("pinned", "no_such_row", "kind"),
    [
        ("", r"holds 200 at \[0, 0\]; the model takes 0 to 199", "Bert"),
        ("transformers", "vocabulary|row", "Bert"),
        ("", r"holds 200 at \[0, 0\]; the model takes 0 to 199", "ModernBert"),
    ],
)
def test_a_checkpoint_folder_is_a_model(triton_server, tmp_path, pinned, no_such_row, kind):
    """As it was saved, without a line of configuration but the backend; too long a text is refused.

    OpenVINO computes it, or torch where that is asked for; the head is the architecture's own.
    """
    import torch
    import transformers

    version = tmp_path / "models" / "scores" / "1"
    version.parent.mkdir(parents=True)
    write_checkpoint(version, classifier=True, kind=kind)
    line = f'parameters {{ key: "engine" value {{ string_value: "{pinned}" }} }}' if pinned else ""
    (version.parent / "config.pbtxt").write_text(f'backend: "ge" {line}')
    server = triton_server(tmp_path / "models")

    model = transformers.AutoModelForSequenceClassification.from_pretrained(version).eval()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        for length in (1, 9, 5, LENGTH):
            ids = np.arange(5, 5 + length, dtype=np.int64)[None]
            given = grpcclient.InferInput("input_ids", ids.shape, "INT64")
            given.set_data_from_numpy(ids)
            found = client.infer("scores", [given]).as_numpy("scores")
            with torch.inference_mode():
                expected = model(input_ids=torch.from_numpy(ids)).logits.numpy()
            np.testing.assert_allclose(found, expected, atol=1e-5)
        for ids, reason in (
            (np.full((1, LENGTH + 1), 5), "at most 32"),
            ([[200]], no_such_row),
        ):
            whole = np.asarray(ids, np.int64)
            given = grpcclient.InferInput("input_ids", whole.shape, "INT64")
            given.set_data_from_numpy(whole)
            with pytest.raises(InferenceServerException, match=reason) as refused:
                client.infer("scores", [given])
            assert "INVALID_ARGUMENT" in refused.value.status()


TYPES = "token_type_ids"
LINES = {
    "scores": "",
    "by_torch": 'parameters { key: "engine" value { string_value: "transformers" } }',
    "unbatched": "max_batch_size: 0",
    "bf16": 'parameters { key: "precision" value { string_value: "bf16" } }',
}


def test_a_rankers_folder_takes_types_of_tokens(triton_server, tmp_path):
    """From those who send them; requests with and without stand beside each other."""
    import torch
    import transformers

    folder = write_checkpoint(tmp_path / "ranker", classifier=True)
    for name, line in LINES.items():
        shutil.copytree(folder, tmp_path / "models" / name / "1")
        (tmp_path / "models" / name / "config.pbtxt").write_text(f'backend: "ge" {line}')
    server = triton_server(tmp_path / "models")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def expected(ids, types):
        with torch.inference_mode():
            return model(torch.from_numpy(ids), token_type_ids=torch.from_numpy(types)).logits

    rows = [np.arange(5, 5 + count, dtype=np.int64)[None] for count in (4, 9, 5, 32, 7) * 3]
    pairs = [(ids, np.int64(ids > 4 + ids.size // 2)) for ids in rows]
    cases = [({"input_ids": ids, TYPES: types}, expected(ids, types)) for ids, types in pairs]
    cases += [({"input_ids": ids}, expected(ids, ids * 0)) for ids in rows]

    with grpcclient.InferenceServerClient(server.grpc) as client, ThreadPoolExecutor(8) as pool:

        def answer(name, tensors):
            more = {"attention_mask": np.ones_like(tensors["input_ids"])}
            sent = []
            for key, values in (tensors | (more if name == "unbatched" else {})).items():
                sent.append(grpcclient.InferInput(key, values.shape, "INT64"))
                sent[-1].set_data_from_numpy(values)
            return client.infer(name, sent).as_numpy("scores")

        for name in LINES:
            found = pool.map(partial(answer, name), [tensors for tensors, _ in cases])
            for scores, (_, wanted) in zip(found, cases, strict=True):
                near = 0.02 if name == "bf16" else 1e-5
                np.testing.assert_allclose(scores, wanted, atol=near)
        with pytest.raises(InferenceServerException, match=r"token_type_ids.* 0 to 1") as refused:
            answer("scores", {"input_ids": rows[0], TYPES: rows[0]})
        assert "INVALID_ARGUMENT" in refused.value.status()
