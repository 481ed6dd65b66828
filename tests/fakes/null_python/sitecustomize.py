"""What Python imports first where this folder is on its path: the tests' null device."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from fakes.null_device import use_here

use_here()
