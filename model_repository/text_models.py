"""The steps of the text ensembles: a tokenizer, an encoder, pooling, two heads.

The encoder is a transformer of one layer with random weights, which keeps what words a text has;
the head is fitted to a few sentences by least squares. Nothing is trained for longer than a moment.
"""

from __future__ import annotations

import string
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx_file import build, save
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

__all__ = ["classifier_head", "pooling", "ranker_head", "text_encoder", "tokenizer"]

SEED = 20_240_602
HIDDEN, INNER = 96, 96
MAX_TOKENS = 128
# How sure the head is of itself; more makes its scores more extreme.
SHARPNESS = 6.0
# How much smaller weights are preferred to a closer fit.
RIDGE = 1.0
# A ranker's logit for a document whose words are the query's, and for one that shares none.
ALIKE, UNLIKE = 5.0, -5.0

LABELS = (Path(__file__).parent / "classifier_head" / "labels.txt").read_text().split()
EXAMPLES = {
    "sport": (
        "The team won the final match",
        "She scored two goals in the second half",
        "The runner broke the world record",
        "Fans cheered as the players left the field",
        "The coach praised his young goalkeeper",
        "He lost the tennis match in three sets",
    ),
    "food": (
        "Bake the bread until it is golden",
        "This soup needs more salt and pepper",
        "The cheese and the wine taste wonderful",
        "Add butter, sugar and two eggs to the flour",
        "We cooked rice with fresh vegetables",
        "The chef serves grilled fish with lemon",
    ),
    "weather": (
        "Heavy rain is expected tomorrow",
        "The sky is clear and the sun is shining",
        "A cold wind blows from the north",
        "Snow fell all night in the mountains",
        "The storm brought thunder and lightning",
        "Fog and low clouds cover the coast",
    ),
}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def tokenizer(path: Path) -> None:
    """Write a tokenizer like BERT's, of the examples' words and of single letters for others."""
    _tokenizer().save(str(path))


def text_encoder(path: Path) -> None:
    """Write the encoder: one vector for each token; padding is not attended to."""
    onnx.save(_encoder(), str(path))


def pooling(path: Path) -> None:
    """Write the mean of the real tokens' vectors, at unit length."""
    nodes = [
        *_mean_of_real_tokens(),
        helper.make_node("ReduceL2", ["mean"], ["length"], axes=[1], keepdims=1),
        helper.make_node("Max", ["length", "tiny"], ["divisor"]),
        helper.make_node("Div", ["mean", "divisor"], ["embedding"]),
    ]
    outputs = {"embedding": (TensorProto.FLOAT, ["batch", HIDDEN])}
    save(path, nodes, TOKENS, outputs, MEAN_CONSTANTS)


def classifier_head(path: Path) -> None:
    """Write one score for each label, 1 in total, of the mean of the real tokens' vectors.

    Raises:
        ValueError: it gets one of its own examples wrong.
    """
    weights, bias = _fitted()
    nodes = [
        *_mean_of_real_tokens(),
        helper.make_node("Gemm", ["mean", "weights", "bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
    ]
    outputs = {"scores": (TensorProto.FLOAT, ["batch", len(LABELS)])}
    save(path, nodes, TOKENS, outputs, {**MEAN_CONSTANTS, "weights": weights, "bias": bias})


def ranker_head(path: Path) -> None:
    """Write how alike the two texts of a pair are, as a logit: the cosine of their means, scaled.

    The tokens of the second text have the type 1.
    """
    cast = {"to": TensorProto.FLOAT}
    nodes = [
        helper.make_node("Cast", ["attention_mask"], ["real"], **cast),
        helper.make_node("Cast", ["token_type_ids"], ["type"], **cast),
        helper.make_node("Mul", ["real", "type"], ["document"]),
        helper.make_node("Sub", ["real", "document"], ["query"]),
    ]
    for side in ("query", "document"):  # sums are as good as means: a cosine has no length
        nodes += [
            helper.make_node("Unsqueeze", [side, "last"], [f"{side}_column"]),
            helper.make_node("Mul", ["hidden", f"{side}_column"], [f"{side}_kept"]),
            helper.make_node("ReduceSum", [f"{side}_kept", "rows"], [f"{side}_sum"], keepdims=0),
            helper.make_node("ReduceL2", [f"{side}_sum"], [f"{side}_length"], axes=[1], keepdims=1),
            helper.make_node("Max", [f"{side}_length", "tiny"], [f"{side}_divisor"]),
            helper.make_node("Div", [f"{side}_sum", f"{side}_divisor"], [f"{side}_unit"]),
        ]
    nodes += [
        helper.make_node("Mul", ["query_unit", "document_unit"], ["products"]),
        helper.make_node("ReduceSum", ["products", "last"], ["cosine"], keepdims=1),
        helper.make_node("Mul", ["cosine", "slope"], ["scaled"]),
        helper.make_node("Add", ["scaled", "lowest"], ["score"]),
    ]
    constants = {
        "last": np.array([-1], np.int64),
        "rows": np.array([1], np.int64),
        "tiny": np.array(1e-9, np.float32),
        "slope": np.array(ALIKE - UNLIKE, np.float32),
        "lowest": np.array(UNLIKE, np.float32),
    }
    outputs = {"score": (TensorProto.FLOAT, ["batch", 1])}
    save(path, nodes, {**TOKENS, "token_type_ids": TOKENS["attention_mask"]}, outputs, constants)


TOKENS = {
    "hidden": (TensorProto.FLOAT, ["batch", "sequence", HIDDEN]),
    "attention_mask": (TensorProto.INT64, ["batch", "sequence"]),
}
MEAN_CONSTANTS = {
    "last": np.array([-1], np.int64),
    "sequence_axis": np.array([1], np.int64),
    "tiny": np.array(1e-9, np.float32),
}


def _mean_of_real_tokens() -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", ["attention_mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "last"], ["column"]),
        helper.make_node("Mul", ["hidden", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "sequence_axis"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["real", "sequence_axis"], ["counted"], keepdims=1),
        helper.make_node("Max", ["counted", "tiny"], ["count"]),
        helper.make_node("Div", ["total", "count"], ["mean"]),
    ]


@cache
def _tokenizer() -> Tokenizer:
    text = " ".join(sentence for examples in EXAMPLES.values() for sentence in examples)
    words = sorted(set(text.lower().replace(",", "").split()))
    letters = string.ascii_lowercase + string.digits + string.punctuation
    pieces = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *words]
    vocabulary = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
    built = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106 - no password
    built.normalizer = normalizers.BertNormalizer()
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    built.decoder = decoders.WordPiece()
    built.add_special_tokens(list(SPECIAL))
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    built.enable_truncation(MAX_TOKENS)
    return built


@cache
def _encoder() -> onnx.ModelProto:
    """Return the encoder: embeddings, one layer of masked attention, one of two matrices."""
    constants = _encoder_constants()
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Shape", ["input_ids"], ["tokens"], start=1),
        helper.make_node("Slice", ["places", "zero", "tokens"], ["place"]),
        helper.make_node("Add", ["word", "place"], ["x"]),
        # Where the mask is 0 a score is so low that nothing of the token is left.
        helper.make_node("Cast", ["attention_mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "real"], ["padding"]),
        helper.make_node("Mul", ["padding", "low"], ["lowered"]),
        helper.make_node("Unsqueeze", ["lowered", "first"], ["bias"]),
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["normal"]),
        *(helper.make_node("MatMul", ["normal", f"to_{name}"], [name]) for name in "qkv"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["products"]),
        helper.make_node("Add", ["products", "bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["attention"], axis=2),
        helper.make_node("MatMul", ["attention", "v"], ["attended"]),
        helper.make_node("Add", ["x", "attended"], ["y"]),
        helper.make_node("LayerNormalization", ["y", "scale", "shift"], ["level"]),
        helper.make_node("MatMul", ["level", "up"], ["wide"]),
        helper.make_node("Relu", ["wide"], ["active"]),
        helper.make_node("MatMul", ["active", "down"], ["change"]),
        helper.make_node("Add", ["y", "change"], ["hidden"]),
    ]
    ids = (TensorProto.INT64, ["batch", "sequence"])
    inputs = {"input_ids": ids, "attention_mask": ids}
    outputs = {"hidden": TOKENS["hidden"]}
    return build("text_encoder", nodes, inputs, outputs, constants)


def _encoder_constants() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(SEED)

    def random(rows: int, columns: int, scale: float) -> np.ndarray:
        return (scale * generator.standard_normal((rows, columns))).astype(np.float32)

    vocabulary = _tokenizer().get_vocab_size()
    return {
        "words": _weight_of_words() * random(vocabulary, HIDDEN, 1.0),
        "places": random(MAX_TOKENS, HIDDEN, 0.02),
        "to_q": random(HIDDEN, HIDDEN, HIDDEN**-0.75),
        "to_k": random(HIDDEN, HIDDEN, HIDDEN**-0.75),
        "to_v": random(HIDDEN, HIDDEN, 0.2 * HIDDEN**-0.5),
        "up": random(HIDDEN, INNER, HIDDEN**-0.5),
        "down": random(INNER, HIDDEN, 0.2 * INNER**-0.5),
        "scale": np.ones(HIDDEN, np.float32),
        "shift": np.zeros(HIDDEN, np.float32),
        "zero": np.array([0], np.int64),
        "first": np.array([1], np.int64),
        "one": np.array(1.0, np.float32),
        "low": np.array(-1e9, np.float32),
    }


def _weight_of_words() -> np.ndarray:
    """Return [vocabulary, 1]: words that are everywhere say little about a text."""
    texts = [text for examples in EXAMPLES.values() for text in examples]
    counts = Counter(token for each in _tokenizer().encode_batch(texts) for token in each.ids)
    weights = [1 / max(1, counts[token]) for token in range(_tokenizer().get_vocab_size())]
    return np.array(weights, np.float32)[:, np.newaxis]


def _fitted() -> tuple[np.ndarray, np.ndarray]:
    """Return the weights [HIDDEN, labels] and the bias that fit the examples best.

    Words that only one label's examples have are examples, too.
    """
    words = {label: set(" ".join(EXAMPLES[label]).lower().split()) for label in LABELS}
    counts = Counter(word for known in words.values() for word in known)
    texts = {
        label: [*EXAMPLES[label], *sorted(word for word in words[label] if counts[word] == 1)]
        for label in LABELS
    }
    features = np.stack([_features(text) for label in LABELS for text in texts[label]])
    wanted = np.repeat(np.arange(len(LABELS)), [len(texts[label]) for label in LABELS])
    padded = np.hstack([features, np.ones((len(features), 1))])
    square = padded.T @ padded + RIDGE * np.eye(HIDDEN + 1)
    fitted = SHARPNESS * np.linalg.solve(square, padded.T @ np.eye(len(LABELS))[wanted])
    wrong = int(((padded @ fitted).argmax(axis=1) != wanted).sum())
    if wrong:
        raise ValueError(f"the head gets {wrong} of its {len(wanted)} examples wrong")
    return fitted[:-1].astype(np.float32), fitted[-1].astype(np.float32)


def _features(text: str) -> np.ndarray:
    """Return the mean of the vectors that the encoder makes of a text's tokens."""
    ids = np.array([_tokenizer().encode(text).ids], np.int64)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return _session().run(None, feed)[0][0].mean(axis=0)


@cache
def _session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(_encoder().SerializeToString())
