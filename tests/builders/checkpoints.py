"""Small Hugging Face folders with random weights: encoders of two layers and eight words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

WORDS = ("rain", "snow", "wind", "match", "goal", "team", "bread", "soup")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WIDTH, LENGTH = 16, 32
LABELS = ("weather", "sport", "food")
SENTENCE = (
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
)


def write_checkpoint(
    folder: Path,
    *,
    classifier: bool = False,
    labels: Sequence[str] = LABELS,
    vocabulary: int = 200,
    kind: str = "Bert",
    task: str = "Model",
) -> Path:
    """Write a BERT or its like of random weights with its tokenizer; return the folder."""
    import torch
    import transformers

    torch.manual_seed(7)
    shape = {"hidden_size": WIDTH, "intermediate_size": 32, "num_attention_heads": 2}
    shape |= {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
    shape |= {"num_hidden_layers": 2, "max_position_embeddings": 64}
    shape |= {"num_key_value_heads": 1, "head_dim": 8} if kind == "Qwen3" else {}
    config = getattr(transformers, f"{kind}Config")(vocab_size=vocabulary, **shape)
    if classifier:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    task = "ForSequenceClassification" if classifier else task
    getattr(transformers, f"{kind}{task}")(config).eval().save_pretrained(folder)
    write_words(folder)
    return folder


def write_words(folder: Path, *, exact: bool = False) -> None:
    """Write `tokenizer.json` and what transformers wants beside it.

    With `exact`, capitals and spaces count: a word with capitals is unknown, and so is each space.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if exact:
        tokenizer.normalizer = normalizers.Sequence([])
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    kind = (
        "PreTrainedTokenizerFast" if exact else "BertTokenizerFast"
    )  # which puts its own steps in
    said = {"tokenizer_class": kind, "model_max_length": LENGTH}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))


def as_sentence_encoder(folder: Path, pooling: str = "mean_tokens", **sentence: int) -> Path:
    """Write what makes a sentence-transformers folder of a checkpoint."""
    (folder / "modules.json").write_text(
        json.dumps([{"idx": n, "name": str(n), **module} for n, module in enumerate(SENTENCE)])
    )
    (folder / "1_Pooling").mkdir(exist_ok=True)
    said = {"word_embedding_dimension": WIDTH, f"pooling_mode_{pooling}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    if sentence:
        (folder / "sentence_bert_config.json").write_text(json.dumps(sentence))
    return folder
