"""LoRA adapters of tiny models: as peft trains and saves them, and as mere values."""

import copy
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from builders.language import quiet
from ge_text.models.adapter import LayerChange, StoredAdapter

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(checkpoint: Path, name: str, base, *, seed=1, save=True, **settings):
    """Put an adapter beside a checkpoint; return peft's model with it, in float32.

    Args:
        checkpoint: the folder.
        name: of the adapter.
        base: transformers' model of the checkpoint; stays as it is.
        seed: of its random weights.
        save: else it is only returned.
        settings: of peft's `LoraConfig`.
    """
    with quiet():
        import peft

        torch.manual_seed(seed)
        config = peft.LoraConfig(
            **{"r": 4, "lora_alpha": 8, "target_modules": list(ALL), **settings}
        )
        model = peft.get_peft_model(copy.deepcopy(base), config)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_" in parameter_name:  # so large that texts are other ones
                    parameter.normal_(std=0.3)
        if save:
            model.save_pretrained(checkpoint / "adapters" / name)
    return model.eval()


def make_broken(checkpoint: Path, name: str, *, like: str):
    """Put an adapter beside a checkpoint that is as another one, without a number in it."""
    folder = checkpoint / "adapters" / name
    shutil.copytree(checkpoint / "adapters" / like, folder, dirs_exist_ok=True)
    weights = folder / "adapter_model.safetensors"
    broken = {key: torch.full_like(one, torch.nan) for key, one in load_file(weights).items()}
    save_file(broken, weights)


def stored_adapter(name="pirate", nbytes=100, stamp="1"):
    """Return an adapter as a value, for models that compute nothing."""
    change = LayerChange(down="down", up="up", rank=2, scaling=1.0)
    return StoredAdapter(
        name=name,
        stamp=stamp,
        config=Path("config"),
        weights=Path("weights"),
        changes={"layer": change},
        nbytes=nbytes,
    )
