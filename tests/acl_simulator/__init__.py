"""A strict stand-in for Huawei's module `acl` (pyACL), for tests on machines without an NPU.

It answers as the documents and the open sources say the real one does, and it refuses, as a
`Misuse`, what the real one answers with a crash or with silently wrong data. It has seen no
hardware: what it shows is that the backend keeps the written rules.
"""

from acl_simulator.graphs import (
    Accumulate,
    Affine,
    ChannelMeans,
    Echo,
    Encoder,
    Kept,
    MatMul,
    OnnxPhotos,
    PixelMeans,
    Sums,
    TokenRows,
    TopK,
)
from acl_simulator.models import write_bundle, write_om
from acl_simulator.refusals import Misuse
from acl_simulator.shapes import BatchGears, DimsGears, ImageGears, Ranges, Static, StaticV2
from acl_simulator.simulator import Simulator
from acl_simulator.torch_npu import TorchNpu

__all__ = [
    "Accumulate",
    "Affine",
    "BatchGears",
    "ChannelMeans",
    "DimsGears",
    "Echo",
    "Encoder",
    "ImageGears",
    "Kept",
    "MatMul",
    "Misuse",
    "OnnxPhotos",
    "PixelMeans",
    "Ranges",
    "Simulator",
    "Static",
    "StaticV2",
    "Sums",
    "TokenRows",
    "TopK",
    "TorchNpu",
    "write_bundle",
    "write_om",
]
