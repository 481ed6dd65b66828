"""A language model that computes nothing, so that every mistake with its cache shows.

The cache keeps, per slot, the token and position that were written there. The next token is a
function of the whole context as it is read back through the block table, and of seed and position;
of those that are allowed the nearest above it. So a token that is missing, doubled, in the wrong place or somebody else's changes the text.
It keeps the adapter, too, under which a token was written: no text may read another's.
"""

import hashlib

import numpy as np

from ge_backend.errors import GraphFailed, InvalidRequest, ModelError
from ge_text.models.adapter import Product
from ge_text.models.batch import Drawn

POISON = 3  # a prompt with this token breaks the step that it is in
NAN = 4  # a prompt with this one has no next token


BROKEN = "broken"  # an adapter of this name cannot be loaded


class Saved:
    def __init__(self, tokens, positions, adapters):
        self.tokens, self.positions, self.adapters = tokens, positions, adapters

    @property
    def nbytes(self):
        return self.tokens.nbytes


def next_token(context, seed, vocabulary, forbidden=(), allowed=None, adapter=""):
    """Return the token behind a context."""
    text = f"{list(map(int, context))} {seed} {len(context)}{adapter}".encode()
    digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    token = digest % vocabulary
    kept = (
        np.ones(vocabulary)
        if allowed is None
        else np.unpackbits(allowed, count=vocabulary, bitorder="little")
    )
    kept[list(forbidden)] = 0
    while not kept[token]:
        token = (token + 1) % vocabulary
    return token


def best_tokens(context, vocabulary, count, adapter=""):
    """Return the tokens that are most likely behind a context, best first, and how likely."""
    text = f"{list(map(int, context))}{adapter}".encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
    scores = np.random.default_rng(seed).normal(size=vocabulary).astype(np.float32)
    logprobs = scores - np.log(np.exp(scores).sum())
    ids = np.argsort(-logprobs)[:count]
    return ids, logprobs[ids]


def expected_tokens(prompt, parameters, *, sample=0, vocabulary=64, eos=(), most=None, adapter=""):
    """Return the output that a request has to have, whatever is served beside it."""
    known, output = list(prompt), []
    ends = {*parameters.stop_token_ids, *(() if parameters.ignore_eos else eos)}
    most = parameters.max_tokens or most
    while len(output) < most:
        few = len(output) < parameters.min_tokens
        seed = parameters.sampling.seed + sample
        output.append(next_token(known, seed, vocabulary, ends if few else (), adapter=adapter))
        known.append(output[-1])
        if output[-1] in ends and len(output) >= parameters.min_tokens:
            break
    return output


class FakeLanguageModel:
    """See above. `steps` has every batch that came."""

    dtype = "FP32"
    products = (Product(inputs=6, layers={"layer": 4}),)

    def __init__(
        self, *, vocabulary=64, block_size=4, max_positions=512, blocks=1000, eos=(), on_step=None
    ):
        self.vocabulary = vocabulary
        self.block_size = block_size
        self.max_positions = max_positions
        self.eos = eos
        self.steps = []
        self.copies = []
        self.scratch = 0
        self.logprob = -0.5
        self.loaded = set()
        self._blocks = blocks
        self._on_step = on_step or (lambda batch: None)

    def cache_bytes_per_block(self):
        return 16 * self.block_size

    def memory_left(self, steps=()):
        return self._blocks * self.cache_bytes_per_block()

    def scratch_bytes(self, steps):
        return self.scratch

    def open_cache(self, num_blocks):
        self.num_blocks = num_blocks
        self.tokens = np.full(num_blocks * self.block_size, -1)
        self.positions = np.full(num_blocks * self.block_size, -1)
        self.adapters = np.full(num_blocks * self.block_size, "", object)

    def load_adapter(self, adapter):
        if adapter.name == BROKEN:
            raise ModelError("the adapter is broken")
        self.loaded.add(adapter.key)

    def drop_adapter(self, key):
        self.loaded.remove(key)

    def prepare(self, bucket):
        pass

    def close(self):
        pass

    def step(self, batch):
        self.steps.append(batch)
        self._on_step(batch)
        self.tokens[batch.slots] = batch.ids
        self.positions[batch.slots] = batch.positions
        adapters = np.full(len(batch.ids), "", object)
        for key, tokens in batch.adapters.items():
            assert key in self.loaded
            adapters[tokens] = key
        self.adapters[batch.slots] = adapters
        if any(POISON in row.prompt for row in batch.rows):
            raise GraphFailed("the step is poisoned")
        contexts = dict(self._contexts(batch, adapters))
        tokens, failed, top = [], {}, []
        for at, (index, row) in enumerate(zip(batch.sampled, batch.rows, strict=True)):
            context = contexts[int(index)]
            assert len(context) == row.position
            assert list(context) == [*row.prompt, *row.output]
            allowed = row.allowed() if row.allowed else None
            if allowed is not None and not allowed.any():
                failed[at], allowed = InvalidRequest("nothing may follow"), None
            seed = row.sampling.seed
            adapter = adapters[int(index)]
            tokens.append(
                next_token(context, seed, self.vocabulary, row.forbidden, allowed, adapter)
            )
            count = row.sampling.logprobs
            top.append(best_tokens(context, self.vocabulary, count, adapter) if count else None)
            if NAN in row.prompt:
                failed[at] = GraphFailed("not a number")
        return Drawn(
            tokens=np.array(tokens, np.int64),
            logprobs=np.full(len(tokens), self.logprob, np.float32),
            ranks=np.full(len(tokens), 3, np.int64),
            top=tuple(top),
            failed=failed,
        )

    def _contexts(self, batch, adapters):
        """Yield the tokens that each real token of a row attends to, itself included."""
        start = 0
        for group in batch.groups:
            assert group.tables.shape[0] == len(group.lengths) == group.rows
            for row in range(group.rows):
                length = int(group.lengths[row])
                if not length:  # padding has no context, and may still be asked for a token
                    yield start + row * group.query + group.query - 1, ()
                slots = group.tables[row][:, None] * self.block_size + np.arange(self.block_size)
                slots = slots.reshape(-1)[:length]
                assert len(slots) == length
                assert list(self.positions[slots]) == list(range(length))
                first = start + row * group.query
                for index in range(first, first + group.query if length else first):
                    if batch.slots[index] >= self.block_size:
                        assert set(self.adapters[slots]) == {adapters[index]}
                        yield index, self.tokens[slots][: batch.positions[index] + 1]
            start += group.rows * group.query
        assert start == len(batch.ids)

    def copy_blocks(self, pairs):
        sources, destinations = (self._slots(blocks) for blocks in zip(*pairs, strict=True))
        self.tokens[destinations] = self.tokens[sources]
        self.positions[destinations] = self.positions[sources]
        self.adapters[destinations] = self.adapters[sources]

    def swap_out(self, blocks):
        self.copies.append(("out", len(blocks)))
        slots = self._slots(blocks)
        return Saved(*(a[slots].copy() for a in (self.tokens, self.positions, self.adapters)))

    def swap_in(self, saved, blocks):
        self.copies.append(("in", len(blocks)))
        self.tokens[self._slots(blocks)] = saved.tokens
        self.positions[self._slots(blocks)] = saved.positions
        self.adapters[self._slots(blocks)] = saved.adapters

    def _slots(self, blocks):
        return (np.array(blocks)[:, None] * self.block_size + np.arange(self.block_size)).ravel()
