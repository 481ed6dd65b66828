#!/usr/bin/env bash
# Expected: AutoTokenizer reads a folder's tokenizer.json as it lies; the class that tokenizer_config.json
#   names adds special tokens and padding.
# Happens: in transformers 5 every named family builds its own normalizer, pre-tokenizer and decoder and
#   throws the file's away; the post-processor (the template around a text) is kept by some (GPT2, Qwen2,
#   Llama, Gemma, Albert) and replaced by others. `PreTrainedTokenizerFast` keeps the file. Whoever fine-tunes
#   with a changed tokenizer.json has other ids here than with the library `tokenizers`.
# Versions: transformers 5.23.0, tokenizers 0.23.3
# Source: transformers, the `__init__` of each tokenizer class
# Guess: missed ("all but Bert's normalizer is kept")
. "$(dirname "$0")/lib.sh"
packages transformers==5.23.0 tokenizers==0.23.3
python <<'PY'
import json, pathlib, tempfile
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

special = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
letters = list("abcABC123.,! -_▁Ġ")
word = {token: i for i, token in enumerate(special + letters + ["##" + letter for letter in letters])}
scored = [(token, 0.0) for token in special] + [(letter, -2.0 - i / 100) for i, letter in enumerate(letters)]
kinds = {
    "Bert MPNet Splinter": models.WordPiece(word, unk_token="[UNK]"),
    "T5 XLMRoberta Camembert Albert DebertaV2 MBart": models.Unigram(scored, 0),
    "Roberta GPT2 Qwen2 Whisper Llama Gemma Nllb GPTNeoX": models.BPE(word, [], unk_token="<unk>"),
}
parts = "normalizer", "pre_tokenizer", "decoder", "post_processor"
holds, kept = True, []
for names, model in kinds.items():
    for name in [*names.split(), "PreTrainedTokenizerFast"]:
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.Replace("-", "b")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("_", "removed"), pre_tokenizers.Split("c", "isolated")])
        tokenizer.decoder = decoders.Fuse()
        tokenizer.post_processor = processors.TemplateProcessing(single="a $A c c", special_tokens=[("a", 10), ("c", 12)])
        folder = pathlib.Path(tempfile.mkdtemp())
        tokenizer.save(str(folder / "tokenizer.json"))
        named = name if name.endswith("Fast") else name + "Tokenizer"
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": named}))
        read = AutoTokenizer.from_pretrained(folder)
        before, after = json.loads((folder / "tokenizer.json").read_text()), json.loads(read.backend_tokenizer.to_str())
        lost = [part for part in parts if before[part] != after[part]]
        print(f"{named}: replaced {', '.join(lost) or 'nothing'}")
        if name.endswith("Fast"):
            holds &= not lost
        else:
            holds &= lost[:3] == list(parts[:3])
            kept += [name] if "post_processor" not in lost else []
raise SystemExit(not (holds and kept == ["Albert", "GPT2", "Qwen2", "Llama", "Gemma"]))
PY
