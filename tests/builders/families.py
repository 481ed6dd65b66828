"""Tiny tokenizers of the families of encoders whose padding is not token 0, and checkpoints."""

import json

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = ("rain", "wind", "snow", "goal", "team")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
LENGTH, WIDTH = 32, 16


def unigram(special=SPECIAL):
    """As XLM-RoBERTa's, multilingual E5's and BGE-M3's, and CamemBERT's with a name before all."""
    pieces = [(token, 0.0) for token in special]
    letters = sorted(set("".join(WORDS)))
    pieces += [("▁", -2.0), *((f"▁{word}", -1.0) for word in WORDS), *((a, -9.0) for a in letters)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=special.index("<unk>")))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, special


def byte_pairs():
    """As RoBERTa's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: at for at, token in enumerate((*SPECIAL, *alphabet, "ra", "in", "rain"))}
    model = models.BPE(vocabulary, [("r", "a"), ("i", "n"), ("ra", "in")], unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, SPECIAL


def word_pieces():
    """As MPNet's."""
    vocabulary = {token: at for at, token in enumerate((*SPECIAL, *WORDS, "##s"))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer, SPECIAL


CAMEMBERT = ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>")
# What transformers calls the kind of the encoder, its tokenizer, and how its vectors are pooled.
FAMILIES = {
    "xlm_roberta": ("XLMRoberta", unigram, ""),
    "multilingual_e5": ("XLMRoberta", unigram, "mean_tokens"),
    "bge_m3": ("XLMRoberta", unigram, "cls_token"),
    "roberta": ("Roberta", byte_pairs, ""),
    "mpnet": ("MPNet", word_pieces, "mean_tokens"),
    "camembert": ("Camembert", lambda: unigram(CAMEMBERT), ""),
}


def family_tokenizer(name):
    """Return the tokenizer of a family, with its special tokens around a text."""
    tokenizer, special = FAMILIES[name][1]()
    tokenizer.add_special_tokens(list(special))
    first, last = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", first), ("</s>", last)],
    )
    return tokenizer


def write_family(folder, name):
    """Write a checkpoint of a family, of random weights, with its tokenizer; return the folder."""
    import torch
    import transformers

    from builders.checkpoints import as_sentence_encoder

    torch.manual_seed(7)
    kind, _, pooling = FAMILIES[name]
    tokenizer = family_tokenizer(name)
    shape = {"hidden_size": WIDTH, "intermediate_size": 32, "num_attention_heads": 2}
    shape |= {"num_hidden_layers": 2, "max_position_embeddings": 64, "pad_token_id": 1}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=tokenizer.get_vocab_size(),
        bos_token_id=tokenizer.token_to_id("<s>"),
        eos_token_id=tokenizer.token_to_id("</s>"),
        **shape,
    )
    getattr(transformers, f"{kind}Model")(config).eval().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LENGTH}
    said |= {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    if pooling:
        as_sentence_encoder(folder, pooling, max_seq_length=LENGTH)
    return folder
