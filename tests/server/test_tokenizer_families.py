"""Encoders whose padding is not token 0 are served from their files: tokenizers, and imported."""

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from builders.families import FAMILIES, family_tokenizer, write_family
from ge_tools.main import main

TEXTS = ("rain", "wind and snow, rain", "", "goal team goals")
PADDING = 1


@pytest.fixture(scope="module")
def server(tmp_path_factory, triton_server):
    """Each family's `tokenizer.json` as it lies, with a configuration of one line."""
    models = tmp_path_factory.mktemp("models")
    for name in FAMILIES:
        (models / name / "1").mkdir(parents=True)
        (models / name / "config.pbtxt").write_text('backend: "ge"\n')
        family_tokenizer(name).save(str(models / name / "1" / "tokenizer.json"))
    return triton_server(models)


def ask(client, model, output):
    column = np.array([[text.encode()] for text in TEXTS], object)
    given = grpcclient.InferInput("text", column.shape, "BYTES")
    given.set_data_from_numpy(column)
    return client.infer(model, [given]).as_numpy(output)


@pytest.mark.parametrize("name", FAMILIES)
def test_texts_become_the_familys_tokens(client, name):
    """Shorter ones are padded with the family's padding."""
    tokenizer = family_tokenizer(name)
    assert tokenizer.token_to_id("<pad>") == PADDING
    tokenizer.enable_padding(pad_id=PADDING, pad_token="<pad>")
    expected = [encoding.ids for encoding in tokenizer.encode_batch(list(TEXTS))]
    np.testing.assert_array_equal(ask(client, name, "input_ids"), expected)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_an_imported_encoder_answers_as_transformers(triton_server, tmp_path):
    """Unequal texts in one request; positions count from behind the padding there."""
    import torch
    import transformers

    for name in FAMILIES:
        folder = write_family(tmp_path / "from" / name, name)
        assert main(["import", str(folder), "--into", str(tmp_path / "models")]) == 0
    server = triton_server(tmp_path / "models")
    for name, (_, _, pooling) in FAMILIES.items():
        output = "sentence_embedding" if pooling else "token_embeddings"
        with grpcclient.InferenceServerClient(server.grpc) as client:
            found = ask(client, name, output)
        folder = tmp_path / "from" / name
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModel.from_pretrained(folder).eval()
        for text, row in zip(TEXTS, found, strict=True):
            with torch.inference_mode():
                expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            if pooling:
                pooled = expected.mean(0) if pooling == "mean_tokens" else expected[0]
                expected = torch.nn.functional.normalize(pooled, dim=0)
            np.testing.assert_allclose(row[: len(expected)], expected.numpy(), atol=1e-5)
