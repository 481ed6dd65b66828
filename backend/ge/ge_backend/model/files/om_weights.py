"""The weights inside an `.om` file: where they lie, and whether two files have the same.

ACL writes this part of the file to device memory as it is, so files in which it is equal byte for
byte may be given one block. A file is a header of 256 bytes, a table of partitions, and these, one
behind the other.
Source: hicann/ge inc/framework/common/framework_types_internal.h (ModelFileHeader,
ModelPartitionTable), base/common/helper/om_file_helper.cc (LoadModelPartitionTable),
runtime/v1/graph/load/model_manager/davinci_model.cc (InitWeightMem).
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

__all__ = ["weights_digest"]

MAGIC = b"IMOD"
HEADER_BYTES = 256
ENCRYPTED_AT, MODELS_AT, LENGTH_AT = 80, 156, 184
WEIGHTS_DATA = 1
# The table's number of partitions, and a partition: type, offset, size. Files without a length in
# their header have the small one.
LARGE = struct.Struct("<I4x"), struct.Struct("<i4xQQ")
SMALL = struct.Struct("<I"), struct.Struct("<iII")
MAX_PARTITIONS = 64
BLOCK_BYTES = 1 << 20


def weights_digest(path: Path) -> str:
    """Return what is equal for files with equal weights; "" where the file does not tell.

    Encrypted files and those of several models do not, nor does anything of another form.
    """
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES or not header.startswith(MAGIC) or header[ENCRYPTED_AT]:
            return ""
        (models,) = struct.unpack_from("<I", header, MODELS_AT)
        (length,) = struct.unpack_from("<Q", header, LENGTH_AT)
        if models > 1:
            return ""
        count_of, partition = LARGE if length else SMALL
        start = file.read(count_of.size)
        count = count_of.unpack(start)[0] if len(start) == count_of.size else MAX_PARTITIONS + 1
        table = file.read(count * partition.size) if count <= MAX_PARTITIONS else b""
        if not table or len(table) % partition.size:
            return ""
        at = HEADER_BYTES + len(start) + len(table)
        for kind, _, size in partition.iter_unpack(table):
            if kind == WEIGHTS_DATA and size and at + size <= path.stat().st_size:
                return _digest(path, at, size)
            at += size
    return ""


def _digest(path: Path, at: int, size: int) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        file.seek(at)
        while size and (block := file.read(min(size, BLOCK_BYTES))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()
