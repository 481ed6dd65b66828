#!/usr/bin/env bash
# Expected: an adapter that was made on a compiled model is saved by the names of the model's layers, as
#   `torch.compile` around the adapter is; or reading it on the plain model fails.
# Happens: its tensors are named `_orig_mod.…`, and on the plain model none of them is read: a warning, and
#   an adapter that changes nothing.
# Versions: peft 0.21.2, transformers 5.23.0, torch 2.13.0
# Source: torch, torch/_dynamo/eval_frame.py, `OptimizedModule`; peft, utils/save_and_load.py
# Guess: missed ("names are the plain model's")
. "$(dirname "$0")/lib.sh"
packages peft==0.21.2 transformers==5.23.0 torch==2.13.0 numpy==2.4.6
python 2>/dev/null <<'PY'
import tempfile
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

def base():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                                        num_attention_heads=4, num_key_value_heads=2)).eval()

def saved(model):
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    with safe_open(f"{folder}/adapter_model.safetensors", "pt") as file:
        return folder, list(file.keys())[0]

config = LoraConfig(r=4, target_modules=["q_proj"])
x = torch.arange(8)[None]
seen = []
for what, model in (("plain", get_peft_model(base(), config)), ("compiled around it", torch.compile(get_peft_model(base(), config))),
                    ("on a compiled model", get_peft_model(torch.compile(base()), config))):
    for key, weights in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.ones_(weights)
    folder, name = saved(model)
    read = PeftModel.from_pretrained(base(), folder).eval()
    changed = not torch.equal(read(x).logits, base()(x).logits)
    seen.append(("_orig_mod" in name, changed))
    print(f"{what}: {name}; read on the plain model it {'changes' if changed else 'does not change'} the answer")
raise SystemExit(seen != [(False, True), (False, True), (True, False)])
PY
