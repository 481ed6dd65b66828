"""Imports that models of text and encoders share, by several threads at once."""

import subprocess
import sys

from builders.checkpoints import write_checkpoint
from builders.language import make
from builders.pages import ROOT

KINDS = ("gemma2", "olmo2", "phi3", "gpt2")
# Opens each of the folders in a thread of its own; an encoder as a graph.
OPENER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import ge_text.torch.decoder  # so that all come to transformers together
from ge_backend.device.base import GraphSource, MemoryInfo, open_device
from ge_text.models.open import OpenLanguage
from ge_text.models.own_thread import OwnThread

device = open_device("cpu")

def opened(name):
    if name.startswith("encoder"):
        path = Path(name.partition(":")[2]) / "config.json"
        return device.load(GraphSource.of(path, engine="transformers"))
    return OwnThread().open(
        OpenLanguage(
            device="cpu", folder=Path(name), precision="origin", threads=1, block_size=4,
            memory=lambda: MemoryInfo(free_bytes=2**30, total_bytes=2**31),
        )
    )

with ThreadPoolExecutor(len(sys.argv)) as pool:
    for found in pool.map(opened, sys.argv[1:]):
        print(type(found).__name__)
"""


def test_models_of_several_architectures_and_an_encoder_open_at_once(tmp_path):
    """In a new process, where each of them is the first that needs transformers."""
    names = []
    for kind in KINDS:
        make(tmp_path / kind, kind)
        names.append(str(tmp_path / kind))
    encoder = write_checkpoint(tmp_path / "encoder")
    command = [sys.executable, "-c", OPENER, *names, f"encoder:{encoder}"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, cwd=ROOT / "backend/ge"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.split()) == len(KINDS) + 1
