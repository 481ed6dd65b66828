"""What a step of text generation takes on an accelerator, bucket by bucket: captured, and eager.

`python -m tools.probes.graph_steps --device cuda:0`, part of `tools/probes/gpu.sh`. A decoder of
random weights in the sizes of SmolLM2-135M; needs torch and numpy, and nothing is downloaded. Both
ways run the same batch in turns; of each the fastest counts, and their scores have to agree.
Without such a device it says so and is done.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from benchmarks.harness.turns import fastest_ms

from ge_backend.device.failures import reason
from ge_backend.engines.torch.streams import Streams
from ge_backend.errors import DeviceUnavailable
from ge_backend.model.files.checkpoint import Checkpoint, read_checkpoint
from ge_text.models.batch import Batch, full_batch
from ge_text.models.sampling import Sampling
from ge_text.torch.base import Decoder
from ge_text.torch.cache import PagedCache
from ge_text.torch.captured import Bucket, CapturedStep
from ge_text.torch.llama import LlamaDecoder
from ge_text.torch.llama_weights import LlamaWeights
from ge_text.torch.loading import DTYPES
from ge_text.torch.step import stage

__all__ = [
    "BLOCK_SIZE",
    "SMOLLM2",
    "Step",
    "bucket_batch",
    "main",
    "measure",
    "random_decoder",
    "shapes_of",
    "table",
]

SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49_152,
    "max_position_embeddings": 8192,
}
# Rows, new tokens of each, blocks of context: decoding at several sizes, and a chunk of a prompt.
BUCKETS: tuple[Bucket, ...] = ((1, 1, 8), (8, 1, 8), (32, 1, 8), (32, 1, 32), (1, 128, 8))
BLOCK_SIZE = 32
# Largest difference of two scores that are the same: half precisions add in another order.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One bucket: milliseconds of the fastest step, and how far the scores are apart.

    Attributes:
        captured_ms: None where the bucket could not be captured.
        trouble: why it could not, or that the scores differ; "" where all is well.
    """

    bucket: Bucket
    eager_ms: float
    captured_ms: float | None
    trouble: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a bucket could not be captured or its scores differ."""
    given = _parse(arguments)
    try:
        streams = _streams(given.device)
    except DeviceUnavailable as error:
        print(f"SKIP  graph_steps: {error}")
        return 0
    with tempfile.TemporaryDirectory() as folder, streams.computing(), torch.inference_mode():
        checkpoint = write_checkpoint(Path(folder), SMOLLM2)
        dtype, device = DTYPES[given.precision], torch.device(given.device)
        decoder = random_decoder(checkpoint, dtype=dtype, device=device)
        found = list(measure(streams, decoder, checkpoint.vocabulary, BUCKETS, given.rounds))
    print(f"{given.device}, {given.precision}, {BLOCK_SIZE} tokens in a block")
    print("\n".join(table(found)))
    return int(any(step.trouble for step in found))


def table(steps: Sequence[Step]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| rows | new tokens | blocks | eager | captured | eager / captured |  |"]
    lines.append("|" + " ---: |" * 6 + " --- |")
    for step in steps:
        sizes = " | ".join(map(str, step.bucket))
        captured, ratio = "", ""
        if step.captured_ms is not None:
            captured, ratio = (
                f"{step.captured_ms:.2f} ms",
                f"{step.eager_ms / step.captured_ms:.2f}",
            )
        lines.append(
            f"| {sizes} | {step.eager_ms:.2f} ms | {captured} | {ratio} | {step.trouble} |"
        )
    return lines


def measure(
    streams: Streams, decoder: Decoder, vocabulary: int, buckets: Sequence[Bucket], rounds: int
) -> Iterator[Step]:
    """Yield one bucket after the other; the caller is the one who computes."""
    most = max(rows * blocks for rows, _, blocks in buckets)
    cache = PagedCache(
        decoder.shapes,
        block_size=BLOCK_SIZE,
        num_blocks=1 + most,
        dtype=decoder.dtype,
        device=decoder.device,
    )
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    for bucket in buckets:
        batch = bucket_batch(bucket)

        def eager(batch: Batch = batch) -> torch.Tensor:
            scores = decoder.logits(stage(batch, cache, decoder.device))
            streams.vendor.synchronize()
            return scores

        expected = eager().float().cpu()
        try:
            captured = CapturedStep(streams, decoder, cache, vocabulary, bucket)
        except RuntimeError as error:
            eager_ms = fastest_ms({"eager": eager}, rounds)["eager"]
            trouble = f"cannot be captured: {reason(error)}"
            yield Step(bucket=bucket, eager_ms=eager_ms, captured_ms=None, trouble=trouble)
            continue
        found = captured.logits(batch).float().cpu()
        differs = float((found - expected).abs().max())
        trouble = "" if differs <= TOLERANCES[decoder.dtype] else f"scores differ by {differs:.2g}"
        runs: dict[str, Callable[[], object]] = {"eager": eager}
        runs["captured"] = functools.partial(captured.logits, batch)
        times = fastest_ms(runs, rounds)
        yield Step(
            bucket=bucket, eager_ms=times["eager"], captured_ms=times["captured"], trouble=trouble
        )


def bucket_batch(bucket: Bucket) -> Batch:
    """Return a step in which every row's last tokens are new, behind a context that is full."""
    rows, query, blocks = bucket
    batch = full_batch(
        [bucket], block_size=BLOCK_SIZE, num_blocks=1 + rows * blocks, sampling=Sampling()
    )
    return replace(batch, ids=np.arange(rows * query) % 7)


def write_checkpoint(folder: Path, sizes: Mapping[str, int]) -> Checkpoint:
    """Write the configuration of a Llama and a file of weights that holds nothing but its header.

    Source: safetensors' format: 8 bytes length, a JSON header, then the tensors.
    """
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32"}
    config = {**kind, **sizes, "tie_word_embeddings": True, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, shape in shapes_of(sizes).items():
        begin, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)  # a hole: weights are made where they are used
    return read_checkpoint(folder)


def random_decoder(checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Return our decoder with weights drawn from a seed, on the device."""
    sizes = {name: checkpoint.number(name) for name in SMOLLM2}
    shapes = shapes_of(sizes)
    torch.manual_seed(0)

    def read(name: str) -> torch.Tensor:
        drawn = torch.randn(shapes[name], device=device, dtype=torch.float32) * 0.02
        return (drawn + 1 if name.endswith("norm.weight") else drawn).to(dtype)

    return LlamaDecoder(LlamaWeights(checkpoint, read), dtype=dtype, device=device)


def shapes_of(sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Llama, as transformers names them."""
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    keys = hidden // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
    found = {"model.embed_tokens.weight": (sizes["vocab_size"], hidden)}
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    named: dict[str, tuple[int, ...]] = dict(found)
    for number in range(sizes["num_hidden_layers"]):
        named |= {f"model.layers.{number}.{key}.weight": shape for key, shape in layer.items()}
    return {**named, "model.norm.weight": (hidden,)}


def _streams(device: str) -> Streams:
    """Return the streams of an accelerator.

    Raises:
        DeviceUnavailable: it is not there, or is none.
    """
    kind, _, index = device.partition(":")
    if kind == "cuda":
        from ge_backend.engines.torch.cuda import open_cuda  # noqa: PLC0415

        return Streams(open_cuda(int(index or 0)))
    if kind == "npu":
        from ge_backend.engines.torch.npu import open_npu  # noqa: PLC0415

        return Streams(open_npu(int(index or 0)))
    raise DeviceUnavailable(f"device {device!r} captures nothing; say cuda:0 or npu:0")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="graph_steps", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--precision", default="BF16", choices=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=20)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
