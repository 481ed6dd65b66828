"""Imports that models of text and encoders share, by several threads at once."""

import subprocess
import sys

import pytest

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

# Opens the folder, draws a token, and prints which modules there are that only compilers need.
LEAN = """
import sys
from pathlib import Path
from ge_backend.device.base import MemoryInfo
from ge_text.models.batch import padding_batch
from ge_text.models.open import OpenLanguage, open_language

model = open_language(
    OpenLanguage(
        device="cpu", folder=Path(sys.argv[1]), precision="origin", threads=1, block_size=32,
        engine=sys.argv[2], memory=lambda: MemoryInfo(free_bytes=2**30, total_bytes=2**31),
    )
).model
model.open_cache(2)
model.step(padding_batch((1, 1, 1)))
print(*{"torch._dynamo", "torch._inductor", "sympy", "transformers"} & set(sys.modules))
"""


@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_our_own_decoder_imports_no_compiler(tmp_path, engine):
    """One takes 70 MiB and a second of every start."""
    make(tmp_path, "llama")
    command = [sys.executable, "-c", LEAN, str(tmp_path), engine]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, cwd=ROOT / "backend/ge"
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr[-2000:]


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
