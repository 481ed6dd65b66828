"""What Python imports first where this folder is on its path: a GPU that is not there."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from ge_backend.device import base

# By name: torch is imported when a GPU is opened, and not before.
base.DEVICE_KINDS["cuda"] = "fakes.cuda_device:FakeCuda"
