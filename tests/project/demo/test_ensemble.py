from __future__ import annotations

import numpy as np
import pytest
from demo import ensemble
from demo.ensemble import ENSEMBLE, embed, write_ensemble


def test_the_tokenizer_and_the_ensemble_are_written(tmp_path):
    """The file is linked under the name that its engine is chosen by."""
    (tmp_path / "file.json").write_text("{}")
    write_ensemble(tmp_path / "models", tmp_path / "file.json", "encoder")

    root = tmp_path / "models"
    assert (root / "minilm_tokenizer" / "1" / "tokenizer.json").read_text() == "{}"
    assert (root / "minilm_text" / "1").is_dir()


def test_the_configurations_are_what_triton_reads(tmp_path):
    """The steps are connected from the text to the embedding."""
    service = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    from google.protobuf import text_format

    (tmp_path / "file.json").write_text("{}")
    write_ensemble(tmp_path / "models", tmp_path / "file.json", "encoder")
    text = (tmp_path / "models" / ENSEMBLE / "config.pbtxt").read_text()
    config = text_format.Parse(text, service.ModelConfig())

    tokenizer, encoder = config.ensemble_scheduling.step
    assert (tokenizer.model_name, encoder.model_name) == ("minilm_tokenizer", "encoder")
    made = dict(tokenizer.output_map)
    assert dict(encoder.input_map) == {name: made[name] for name in ("input_ids", "attention_mask")}
    assert list(encoder.output_map.values()) == [config.output[0].name]


class Client:
    """Answers with the length of each text."""

    asked: list[int]

    def __init__(self, _url: str) -> None:
        Client.asked = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def infer(self, model, inputs):
        assert model == ENSEMBLE
        Client.asked.append(inputs[0].shape()[0])
        data = inputs[0]._get_content()
        lengths, at = [], 0
        while at < len(data):
            lengths.append(int.from_bytes(data[at : at + 4], "little"))
            at += 4 + lengths[-1]
        return Result(lengths)


class Result:
    def __init__(self, lengths):
        self.lengths = lengths

    def as_numpy(self, name):
        assert name == "sentence_embedding"
        return np.array(self.lengths, np.float32)[:, np.newaxis]


def test_texts_are_sent_many_at_a_time(monkeypatch):
    """No more than the encoder takes in one request; the answers are in order."""
    monkeypatch.setattr(ensemble.grpcclient, "InferenceServerClient", Client)
    texts = ["x" * length for length in range(70)]

    assert embed("nowhere", texts)[:, 0].tolist() == list(range(70))
    assert Client.asked == [32, 32, 6]
