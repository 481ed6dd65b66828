"""An imported encoder answers texts, on the real server, as its own library does."""

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from builders.checkpoints import WIDTH, as_sentence_encoder, write_checkpoint
from ge_backend.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TEXTS = ("rain and wind", "Goal!", "bread with soup " * 30, "")


def test_texts_are_embedded_as_transformers_embeds_them(triton_server, tmp_path, capsys):
    """Short ones, an empty one, and one that is longer than the checkpoint takes, all at once."""
    import torch
    import transformers

    folder = as_sentence_encoder(write_checkpoint(tmp_path / "weather"))
    assert main(["import", str(folder), "--into", str(tmp_path / "models")]) == 0
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
            encoded = tokenizer(text, truncation=True, return_tensors="pt")
            hidden = model(**encoded).last_hidden_state[0]
        expected = torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy()
        np.testing.assert_allclose(row, expected, atol=1e-5)
    assert found.shape == (len(TEXTS), WIDTH)
