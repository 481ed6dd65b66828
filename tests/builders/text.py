"""Small tokenizers for tests, made by code."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

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
