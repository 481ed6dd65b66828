"""Tiny language models with random weights, as checkpoint folders, and steps to drive them with."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers

from ge_backend.device.base import MemoryInfo
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.models.batch import Batch, Group, SampleRow
from ge_text.models.sampling import Sampling
from ge_text.openvino.graph import BLOCK_SIZE
from ge_text.openvino.open import load_openvino
from ge_text.torch.cache import CacheForm
from ge_text.torch.loading import DTYPES, load_decoder
from ge_text.torch.model import TorchLanguageModel

# Threads that wait for each other cost more than they gain on models this small.
torch.set_num_threads(1)

VOCABULARY = 97
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    # So large that no two scores are close: a tie would make the comparison a matter of rounding.
    "initializer_range": 0.5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
GREEDY = Sampling(temperature=0.0)
CPU = torch.device("cpu")


def rotary(kind, **settings):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **settings}}


LLAMA3 = rotary(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
WINDOWED = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
GEMMA = {"head_dim": 16, "num_hidden_layers": 2, "query_pre_attn_scalar": 16, **WINDOWED}
# Name -> (transformers' class name without its ending, what differs from COMMON)
LLAMAS = {
    "llama": ("Llama", {}),
    "llama-biases": ("Llama", {"attention_bias": True}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-one-key-head": ("Llama", {"num_key_value_heads": 1, "head_dim": 12}),
    "llama-linear": ("Llama", rotary("linear", factor=4.0)),
    "llama-llama3": ("Llama", LLAMA3),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma3": ("Gemma3", {**GEMMA, "query_pre_attn_scalar": 9}),
}
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
OTHERS = {
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gpt2": ("GPT2", GPT2),
    "phi3": ("Phi3", {}),
    "phimoe-window": ("Phimoe", {"num_local_experts": 3, "sliding_window": 7}),
    "olmo2": ("Olmo2", {}),
    "granite": ("Granite", {"logits_scaling": 3.0, "residual_multiplier": 0.5}),
    "llama-yarn": ("Llama", rotary("yarn", factor=4.0, original_max_position_embeddings=16)),
}


def make(folder: Path, name: str, seed: int = 0, **changes):
    """Write a checkpoint into a folder and return transformers' model of it, in float32."""
    family, differs = {**LLAMAS, **OTHERS}[name]
    head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    config_class = getattr(transformers, f"{family}{'Text' * (family == 'Gemma3')}Config")
    common = {} if family == "GPT2" else COMMON
    torch.manual_seed(seed)
    with quiet():
        model = getattr(transformers, family + head)(
            config_class(**{**common, **differs, **changes})
        )
        with torch.no_grad():  # biases and norms, too, that begin as zeros and ones
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(folder)
        # transformers 5.20, the last for Python 3.10, leaves soft caps out of its other attention.
        model.set_attn_implementation("eager")
    return model.eval()


@contextlib.contextmanager
def quiet():
    """Hold back what transformers tells people at a terminal."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def opened(
    folder: Path, *, blocks=0, block_size=4, dtype="FP32", cache=None, decoder=None, threads=1
):
    """Return the language model of a folder, its cache opened where `blocks` are given."""
    checkpoint = read_checkpoint(folder)
    if decoder is None:
        decoder = load_decoder(checkpoint, dtype=dtype, device=CPU)
    own = getattr(decoder, "cache_dtype", decoder.dtype)
    model = TorchLanguageModel(
        checkpoint,
        decoder,
        form=CacheForm(block_size=block_size, dtype=DTYPES[cache] if cache else own),
        memory=lambda: MemoryInfo(free_bytes=2**32, total_bytes=2**33),
        threads=threads,
    )
    if blocks:
        model.open_cache(blocks)
    return model


def in_openvino(
    folder: Path, *, blocks=0, dtype="FP32", threads=1, compressed=False, narrow_cache=False
):
    """Return the language model of a folder whose steps OpenVINO computes; blocks of 32 tokens."""
    decoder = load_openvino(
        read_checkpoint(folder),
        dtype=dtype,
        threads=threads,
        compressed=compressed,
        narrow_cache=narrow_cache,
    )
    return opened(
        folder,
        blocks=blocks,
        block_size=BLOCK_SIZE,
        decoder=decoder,
        threads=threads,
    )


def generated(model, prompt, count, **settings):
    """Return the tokens that transformers draws after a prompt, greedily."""
    with quiet(), torch.inference_mode():
        ids = torch.tensor([list(map(int, prompt))])
        out = model.generate(ids, max_new_tokens=count, do_sample=False, **settings)
    return out[0, len(prompt) :].tolist()


def beams(model, prompt, count, *, eos_token_id, **settings):
    """Return the best texts that transformers' beam search finds, each up to its end."""
    with quiet(), torch.inference_mode():
        ids = torch.tensor([list(map(int, prompt))])
        out = model.generate(
            ids, max_new_tokens=count, do_sample=False, eos_token_id=eos_token_id, **settings
        )
    texts = out[:, len(prompt) :].tolist()
    return [
        text[: text.index(eos_token_id) + 1] if eos_token_id in text else text for text in texts
    ]


@dataclass
class Text:
    """One sequence: what is known, how much of it is in the cache, and where."""

    prompt: np.ndarray
    table: np.ndarray
    sampling: Sampling = GREEDY
    computed: int = 0
    output: list = field(default_factory=list)

    @property
    def known(self):
        return np.concatenate((self.prompt, np.array(self.output, np.int64)))


def batch_of(planned, block_size, *, together=True, bucket=None):
    """Return one step for (text, number of new tokens) pairs, in their order.

    Args:
        planned: what is computed now.
        block_size: of the cache.
        together: neighbours of one query length are one group; else each row is its own.
        bucket: pads a group (rows, query, blocks) to these sizes.
    """
    groups = []
    for text, count in planned:
        if together and groups and groups[-1][0][1] == count:
            groups[-1].append((text, count))
        else:
            groups.append([(text, count)])
    built = [_group(rows, block_size, bucket) for rows in groups]
    ids, positions, slots = (np.concatenate([part[index] for part in built]) for index in range(3))
    sampled, rows, first = [], [], 0
    for of_group, part in zip(groups, built, strict=True):
        query = part[3].query
        for index, (text, count) in enumerate(of_group):
            if text.computed + count == len(text.known):
                sampled.append(first + index * query + count - 1)
                rows.append(
                    SampleRow(
                        sampling=text.sampling,
                        position=len(text.known),
                        prompt=text.prompt,
                        output=np.array(text.output, np.int64),
                    )
                )
        first += len(part[0])
    return Batch(
        ids=ids,
        positions=positions,
        slots=slots,
        groups=tuple(part[3] for part in built),
        sampled=np.array(sampled, np.int64),
        rows=tuple(rows),
    )


def _group(planned, block_size, bucket):
    ends = [text.computed + count for text, count in planned]
    needed = (
        len(planned),
        max(count for _, count in planned),
        max(-(-end // block_size) for end in ends),
    )
    rows, query, blocks = needed if bucket is None else bucket(*needed)
    ids, positions, slots = (np.zeros((rows, query), np.int64) for _ in range(3))
    tables, lengths = np.zeros((rows, blocks), np.int64), np.zeros(rows, np.int64)
    for index, (text, count) in enumerate(planned):
        places = np.arange(text.computed, text.computed + count)
        ids[index, :count] = text.known[places]
        positions[index, :count] = places
        slots[index, :count] = text.table[places // block_size] * block_size + places % block_size
        own = -(-ends[index] // block_size)
        tables[index, :own] = text.table[:own]
        lengths[index] = ends[index]
    group = Group(rows=rows, query=query, tables=tables, lengths=lengths)
    return ids.ravel(), positions.ravel(), slots.ravel(), group


def texts_for(prompts, rng, block_size, longest, samplings=()):
    """Return a text for each prompt, with blocks scattered over a cache, and how many there are."""
    each = -(-longest // block_size)
    order = rng.permutation(len(prompts) * each) + 1
    tables = order.reshape(len(prompts), each)
    wishes = [*samplings, *[GREEDY] * (len(prompts) - len(samplings))]
    texts = [
        Text(prompt=np.asarray(prompt), table=table, sampling=wish)
        for prompt, table, wish in zip(prompts, tables, wishes, strict=True)
    ]
    return texts, len(order) + 1


def run(model, texts, count, rng, *, chunk=5, **building):
    """Let all texts grow by `count` tokens, in steps of a random choice of rows, as they come.

    Rows of one query length are neighbours, as an engine has them.
    """
    for _ in range(10_000):
        open_texts = [text for text in texts if len(text.output) < count]
        if not open_texts:
            return
        chosen = [text for text in open_texts if rng.random() < 0.8] or open_texts[:1]
        planned = []
        for text in chosen:
            left = len(text.known) - text.computed
            planned.append((text, min(left, int(rng.integers(1, chunk + 1)))))
        planned.sort(key=lambda pair: pair[1])
        batch = batch_of(planned, model.block_size, **building)
        drawn = model.step(batch)
        assert not drawn.failed
        tokens = iter(drawn.tokens.tolist())
        for text, new in planned:
            text.computed += new
            if text.computed == len(text.known):
                text.output.append(next(tokens))
    raise AssertionError("the texts do not grow")
