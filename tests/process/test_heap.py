"""What is freed stays with the process."""

import subprocess
import sys

FAULTS = """
import resource, sys
from ge_backend.executor.process.main import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    [b"x" * (20 << 20) for _ in range(4)]
step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""


def faults(heap: str) -> int:
    command = [sys.executable, "-c", FAULTS, heap]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_large_blocks_are_used_again():
    """Large arrays that come and go cost pages once, not each time; by default they do."""
    once = (80 << 20) // 4096
    assert faults("kept") < once
    assert faults("default") > 5 * once
