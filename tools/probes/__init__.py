"""Questions to engines and to borrowed hardware: not part of the wheel.

`python -m tools.probes.NAME` in the repository's root; `gpu.sh` and `npu.sh` ask all of theirs.
"""
