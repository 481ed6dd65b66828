"""Small tokenizers for tests, made by code."""

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = ("the", "cat", "sat", "on", "a", "mat", "##s", "é")
VOCABULARY = {word: at for at, word in enumerate((*SPECIAL, *WORDS))}


def build_tokenizer(*, max_length=8, pad=None, special=True, exact=False):
    """Return a BERT-like tokenizer of a dozen words; `pad` is what its file says of padding.

    With `exact`, capitals and each space count: both are unknown.
    """
    tokenizer = Tokenizer(models.WordPiece(VOCABULARY, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if exact:
        tokenizer.normalizer = normalizers.Sequence([])
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(SPECIAL))
    if special:
        around = [("[CLS]", VOCABULARY["[CLS]"]), ("[SEP]", VOCABULARY["[SEP]"])]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=around
        )
    if max_length:
        tokenizer.enable_truncation(max_length)
    if pad is not None:
        tokenizer.enable_padding(**pad)
    return tokenizer


def write_tokenizer(path, **options):
    """Write `build_tokenizer(**options)`; return it."""
    tokenizer = build_tokenizer(**options)
    tokenizer.save(str(path))
    return tokenizer


TEXT = "A naïve café, 你好 and 😀 👩‍👩‍👧 again: naïve 你好!\nTabs\tand  spaces, e\u0301 too."
BYTE_SPECIAL = ["<s>", "</s>", "<unk>"]


def byte_level():
    """Like GPT-2's, Llama 3's, Qwen's: every byte has its token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=BYTE_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def byte_fallback():
    """Like Llama 2's and Gemma's: words with their space, unknown characters as bytes."""
    words = ["▁A", "▁na", "ï", "ve", "▁café", "▁", "a", "n", "d", "▁and", ",", "!", "t", "o"]
    tokens = [*BYTE_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = [(token, -float(index)) for index, token in enumerate(tokens)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(BYTE_SPECIAL)
    return tokenizer
