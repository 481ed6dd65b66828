"""Simulated NPUs: the calls, the checked calls of one device, and a device that loads models."""

from fixtures.npus import npu, runtime, sim

__all__ = ["npu", "runtime", "sim"]
