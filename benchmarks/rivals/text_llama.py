"""llama.cpp in one process with its caller (`pipe`): a token of each text, then prompts, per batch.

python text_llama.py FILE.gguf
"""

import os
import sys

import llama_cpp as llama
import numpy as np
from pipe import Asked, asked, said  # type: ignore[import-not-found]

SEQUENCES, CONTEXT, BATCH = 64, 32768, 2048

model = llama.llama_model_load_from_file(sys.argv[1].encode(), llama.llama_model_default_params())
words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
params = llama.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_seq_max = CONTEXT, BATCH, SEQUENCES
params.kv_unified = True
params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
context = llama.llama_init_from_model(model, params)
batch = llama.llama_batch_init(BATCH, 0, 1)


class Text:
    """One text: ids that were not computed yet, how many were, and how many it wants."""

    def __init__(self, one: Asked, place: int) -> None:
        self.number, self.place, self.left = one.number, place, one.tokens
        self.ids, self.done = one.prompt, 0


def step() -> None:
    """Compute one batch; texts that write come first, then prompts as far as there is room."""
    batch.n_tokens, ends = 0, []
    for text in sorted(texts, key=lambda text: len(text.ids)):
        count = min(len(text.ids), BATCH - batch.n_tokens)
        for at, token in enumerate(text.ids[:count], batch.n_tokens):
            batch.token[at], batch.pos[at] = token, text.done
            batch.n_seq_id[at], batch.seq_id[at][0], batch.logits[at] = 1, text.place, 0
            text.done += 1
        batch.n_tokens += count
        text.ids = text.ids[count:]
        if count and not text.ids:
            batch.logits[batch.n_tokens - 1] = 1
            ends.append((batch.n_tokens - 1, text))
    if status := llama.llama_decode(context, batch):
        raise RuntimeError(f"llama_decode returned {status}, expected 0")
    for at, text in ends:
        scores = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, at), (words,))
        text.ids = [int(scores.argmax())]
        text.left -= 1
        said(text.number, text.ids)
        if not text.left:
            texts.remove(text)
            places.add(text.place)
            llama.llama_memory_seq_rm(llama.llama_get_memory(context), text.place, -1, -1)


texts: list[Text] = []
places = set(range(SEQUENCES))
for one in asked(lambda: bool(texts)):
    if one:
        texts.append(Text(one, places.pop()))
    else:
        step()
