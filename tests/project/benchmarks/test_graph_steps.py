"""Steps of text generation, captured and eager, on an accelerator that is not there."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tools.probes import graph_steps
from tools.probes.graph_steps import Step, bucket_batch, main, measure, random_decoder, table

from fakes.torch_vendor import FakeVendor
from ge_backend.engines.torch.streams import Streams
from ge_backend.errors import DeviceUnavailable

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 256,
}
BUCKETS = ((1, 1, 2), (3, 1, 2), (1, 40, 2))


@pytest.fixture
def decoder(tmp_path):
    checkpoint = graph_steps.write_checkpoint(tmp_path, SIZES)
    return random_decoder(checkpoint, dtype=torch.float32, device=torch.device("cpu"))


def measured(decoder, streams):
    with streams.computing(), torch.inference_mode():
        return list(measure(streams, decoder, SIZES["vocab_size"], BUCKETS, rounds=2))


def test_every_bucket_is_captured_and_agrees(decoder):
    """One capture each, replayed once to compare and once per round."""
    vendor = FakeVendor()
    found = measured(decoder, Streams(vendor))
    assert [step.bucket for step in found] == list(BUCKETS)
    assert [step.trouble for step in found] == [""] * 3
    assert all(step.eager_ms > 0 and step.captured_ms > 0 for step in found)
    assert vendor.counts["capture", "compute"] == 3
    assert vendor.counts["replay", "compute"] == 3 * (1 + 2)


def test_a_bucket_that_cannot_be_captured_is_told(decoder):
    """With its eager time and the reason; the others go on."""
    vendor = FakeVendor()
    vendor.capture_errors.append(RuntimeError("not permitted when stream is capturing"))
    first, second, third = measured(decoder, Streams(vendor))
    assert first.captured_ms is None
    assert first.eager_ms > 0
    assert first.trouble == "cannot be captured: not permitted when stream is capturing"
    assert (second.trouble, third.trouble) == ("", "")


def test_scores_that_differ_are_told(decoder, monkeypatch):
    """A quick step that computes something else is worth nothing."""
    replay = graph_steps.CapturedStep.logits
    monkeypatch.setattr(graph_steps.CapturedStep, "logits", lambda *given: replay(*given) + 1)
    assert {step.trouble for step in measured(decoder, Streams(FakeVendor()))} == {
        "scores differ by 1"
    }


def test_a_full_batch_fills_its_bucket():
    """The new tokens are the last of each row's blocks, and no slot is used twice."""
    batch = bucket_batch((3, 40, 2))
    assert batch.positions.reshape(3, 40)[:, -1].tolist() == [63] * 3
    assert batch.positions.min() == 24
    assert len(np.unique(batch.slots)) == 120
    assert batch.groups[0].lengths.tolist() == [64] * 3
    assert (
        batch.slots.reshape(3, 40)[:, -1].tolist()
        == (batch.groups[0].tables[:, 1] * 32 + 31).tolist()
    )


def test_without_a_gpu_it_is_skipped(monkeypatch, capsys):
    """Nothing is measured, and nothing has failed."""

    def refuse(device):
        raise DeviceUnavailable(f"device {device!r}: torch finds no GPU")

    monkeypatch.setattr(graph_steps, "_streams", refuse)
    assert main([]) == 0
    assert capsys.readouterr().out == "SKIP  graph_steps: device 'cuda:0': torch finds no GPU\n"


@pytest.mark.parametrize("device", ["cpu", "abacus:0"])
def test_what_captures_nothing_is_refused(device, capsys):
    """It names what does."""
    assert main(["--device", device]) == 0
    assert "say cuda:0 or npu:0" in capsys.readouterr().out


def test_the_table_has_a_line_per_bucket():
    """Where nothing was captured the reason stands in place of figures."""
    steps = [
        Step(bucket=(8, 1, 4), eager_ms=4.0, captured_ms=1.0, trouble=""),
        Step(bucket=(1, 64, 4), eager_ms=4.0, captured_ms=None, trouble="cannot be captured: x"),
    ]
    assert table(steps)[2:] == [
        "| 8 | 1 | 4 | 4.00 ms | 1.00 ms | 4.00 |  |",
        "| 1 | 64 | 4 | 4.00 ms |  |  | cannot be captured: x |",
    ]
