#!/usr/bin/env bash
# Expected: `add_eos_token` puts the end of text behind each text, whether tokenizer_config.json says so or
#   `from_pretrained` is told, and the begin of text stays where it was.
# Happens: in tokenizer_config.json it is ignored wherever tokenizer.json lies beside it, and the attribute
#   says False; as an argument it makes a new template of the two switches alone, and the begin of text that
#   the file's template had is gone, too. An embedding of the last token is of another token either way.
# Versions: transformers 5.23.0, tokenizers 0.23.3
# Source: transformers, tokenization_utils_base.py, `_from_pretrained`, and tokenization_utils_tokenizers.py,
#   `update_post_processor`
# Guess: half missed ("a file that has a template keeps it"; not that the argument drops the begin)
. "$(dirname "$0")/lib.sh"
packages transformers==5.23.0 tokenizers==0.23.3
python <<'PY'
import json, pathlib, tempfile
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

tokens = ["<unk>", "<s>", "</s>", "a"]

def folder(kind, **said):
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(tokens[:3])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made = pathlib.Path(tempfile.mkdtemp())
    tokenizer.save(str(made / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": kind}
    (made / "tokenizer_config.json").write_text(json.dumps({**named, **said}))
    return made

kind, holds = "PreTrainedTokenizerFast", True
for what, read, expected in (
    ("nothing", AutoTokenizer.from_pretrained(folder(kind)), "<s> a"),
    ("the file", AutoTokenizer.from_pretrained(folder(kind, add_eos_token=True)), "<s> a"),
    ("an argument", AutoTokenizer.from_pretrained(folder(kind), add_eos_token=True), "a </s>"),
    ("two arguments", AutoTokenizer.from_pretrained(folder(kind), add_eos_token=True, add_bos_token=True), "<s> a </s>"),
):
    seen = " ".join(read.convert_ids_to_tokens(read("a").input_ids))
    print(f"add_eos_token said by {what}: {seen}; the attribute is {read.add_eos_token}")
    holds &= seen == expected
raise SystemExit(not holds)
PY
