#!/usr/bin/env bash
# Expected: `from_pretrained(gguf_file=…)` reads what stretches a model's positions, or refuses the file: the
#   metadata `rope.scaling` and the tensor `rope_freqs.weight` (in which llama.cpp's converter keeps Llama 3's
#   scaling), as well as biases of attention.
# Happens: all of them are left out, and nothing is said: Gemma 3 and Llama 3.1 to 3.3 compute with other positions,
#   also in short texts, and what is saved of them has no `rope_scaling`.
# Versions: transformers 5.23.0, gguf 0.19.0, torch 2.13.0
# Source: transformers, integrations/ggml.py, `GGUF_CONFIG_MAPPING`; ggml-org/ggml, docs/gguf.md, [llm].rope.scaling
# Guess: missed ("scaling is kept; the tensor and biases are honoured or refused")
. "$(dirname "$0")/lib.sh"
packages transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0 torch==2.13.0 numpy==2.4.6
python 2>/dev/null <<'PY'
import copy, tempfile
import gguf, numpy as np, torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

HIDDEN, HEADS, INNER, TOKENS = 32, 4, 64, 40

def read(scaling=None, **more):
    random = np.random.default_rng(0)
    made = lambda *shape: random.standard_normal(shape).astype(np.float32) / 4
    folder = tempfile.mkdtemp()
    writer = gguf.GGUFWriter(f"{folder}/m.gguf", "llama")
    for add, value in ((writer.add_context_length, 64), (writer.add_embedding_length, HIDDEN), (writer.add_block_count, 1),
                       (writer.add_feed_forward_length, INNER), (writer.add_head_count, HEADS), (writer.add_head_count_kv, HEADS),
                       (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_freq_base, 1e4), (writer.add_vocab_size, TOKENS),
                       (writer.add_rope_dimension_count, HIDDEN // HEADS)):
        add(value)
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling)
    square, one = (HIDDEN, HIDDEN), np.ones(HIDDEN, np.float32)
    layer = {"attn_norm": one, "ffn_norm": one, **{f"attn_{n}": made(*square) for n in ("q", "k", "v", "output")},
             "ffn_gate": made(INNER, HIDDEN), "ffn_up": made(INNER, HIDDEN), "ffn_down": made(HIDDEN, INNER)}
    tensors = {"token_embd.weight": made(TOKENS, HIDDEN), "output.weight": made(TOKENS, HIDDEN), "output_norm.weight": one,
               **{f"blk.0.{name}.weight": tensor for name, tensor in layer.items()}}
    for name, tensor in {**tensors, **more}.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file="m.gguf").eval()

def right(model, factors=None, scaling=None, bias=None):
    config = copy.deepcopy(model.config)
    config.attention_bias = bias is not None
    if scaling:
        config.rope_parameters = {"rope_type": "linear", "rope_theta": 1e4, "factor": scaling}
    made = LlamaForCausalLM(config).eval()
    torch.nn.Module.load_state_dict(made, model.state_dict(), strict=False)
    if factors is not None:
        made.model.rotary_emb.inv_freq /= torch.from_numpy(factors)
    if bias is not None:
        attention = made.model.layers[0].self_attn
        for layer in (attention.q_proj, attention.k_proj, attention.o_proj):
            torch.nn.init.zeros_(layer.bias)
        attention.v_proj.bias.data.copy_(torch.from_numpy(bias))
    return made

x = torch.arange(20)[None]
factors, bias = np.array([1, 1, 4, 8], np.float32), np.full(HIDDEN, 0.5, np.float32)
holds = True
for what, model, said in (("nothing of it", read(), {}), ("rope.scaling, factor 4", read(4.0), {"scaling": 4.0}),
                          ("rope_freqs.weight", read(**{"rope_freqs.weight": factors}), {"factors": factors}),
                          ("a bias of values", read(**{"blk.0.attn_v.bias": bias}), {"bias": bias})):
    off = float((model(x).logits - right(model, **said)(x).logits).abs().max())
    kind = model.config.rope_parameters["rope_type"]
    print(f"{what} in the file: rope_type {kind}, answers are off by {off:.3f}")
    holds &= kind == "default" and (off > 0.05 if said else off < 1e-4)
raise SystemExit(not holds)
PY
