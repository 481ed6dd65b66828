#!/usr/bin/env bash
# Expected: `add_weighted_adapter` of one adapter with weight 1 makes that adapter again, and what is saved
#   of it is read again.
# Happens: of an adapter with `use_rslora` the effect is larger by the root of its rank, twice for rank 4,
#   by each combination type, in memory and saved: the new adapter has alpha = rank, so that a factor
#   alpha / rank would be 1, but it has taken `use_rslora` over. Of one with a `rank_pattern`, in
#   whose configuration the pattern is gone, the saved folder cannot be read.
# Versions: peft 0.21.2, transformers 5.23.0, torch 2.13.0
# Source: peft, tuners/lora/model.py, `add_weighted_adapter`
# Guess: missed ("right for both")
. "$(dirname "$0")/lib.sh"
packages peft==0.21.2 transformers==5.23.0 torch==2.13.0 numpy==2.4.6
python 2>/dev/null <<'PY'
import pathlib, tempfile
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

def base():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                        num_attention_heads=4, num_key_value_heads=2))

def change(model, name):
    return model.base_model.model.model.layers[0].self_attn.q_proj.get_delta_weight(name)

holds = True
for what, said, factor in (("plain", {}, 1), ("use_rslora", {"use_rslora": True}, 2)):
    for kind in ("linear", "cat", "svd"):
        model = get_peft_model(base(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], init_lora_weights=False, **said))
        model.add_weighted_adapter(["default"], [1.0], "mixed", combination_type=kind)
        folder = tempfile.mkdtemp()
        model.save_pretrained(folder, selected_adapters=["mixed"])
        read = PeftModel.from_pretrained(base(), pathlib.Path(folder) / "mixed")
        size = change(model, "default").norm()
        memory, saved = (float(each.norm() / size) for each in (change(model, "mixed"), change(read, "default")))
        print(f"{what}, {kind}: {memory:.3f} of the effect in memory, {saved:.3f} saved")
        holds &= max(abs(memory - factor), abs(saved - factor)) < 1e-3

model = get_peft_model(base(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": 2}))
model.add_weighted_adapter(["default"], [1.0], "mixed", combination_type="cat")
folder = tempfile.mkdtemp()
model.save_pretrained(folder, selected_adapters=["mixed"])
try:
    PeftModel.from_pretrained(base(), pathlib.Path(folder) / "mixed")
    raise SystemExit(1)
except RuntimeError as error:
    print("rank_pattern, saved and read:", str(error).splitlines()[1].strip()[:110])
raise SystemExit(not holds)
PY
