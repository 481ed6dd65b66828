"""The module `acl`, simulated, in a process that has this folder on its PYTHONPATH.

`acl.simulator` is the simulator itself; `ACL_SIMULATOR_*` describe it (`environment.py`).
"""

import os
import sys
from pathlib import Path

TESTS = str(Path(__file__).resolve().parents[2])

sys.path.append(TESTS)
try:
    from acl_simulator.environment import from_environment
finally:
    sys.path.remove(TESTS)

simulator = from_environment(os.environ)
globals().update(simulator.module())
