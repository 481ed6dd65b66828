"""Where weights lie in an `.om` file; the container is written here by its own description."""

import struct

import pytest

from acl_simulator import MatMul, Static, write_om
from ge_backend.model.files.om_weights import weights_digest


def container(parts, *, large=True, models=1, encrypted=0):
    """Return a file of these (type, content), as hicann/ge's headers describe one."""
    number, row = ("<I4x", "<i4xQQ") if large else ("<I", "<iII")
    table = struct.pack(number, len(parts))
    offset = 0
    for kind, content in parts:
        table += struct.pack(row, kind, offset, len(content))
        offset += len(content)
    header = bytearray(256)
    header[:4] = b"IMOD"
    header[80] = encrypted
    struct.pack_into("<I", header, 156, models)
    struct.pack_into("<Q", header, 184, len(table) + offset if large else 0)
    return bytes(header) + table + b"".join(content for _, content in parts)


def digest(tmp_path, data):
    path = tmp_path / "model.om"
    path.write_bytes(data)
    return weights_digest(path)


@pytest.mark.parametrize("large", [True, False])
def test_it_is_the_weights_alone_that_count(tmp_path, large):
    """Whatever else is in the file, and wherever they lie."""
    first = digest(tmp_path, container([(0, b"graph"), (1, b"weights"), (2, b"task")], large=large))
    second = digest(tmp_path, container([(1, b"weights"), (0, b"another graph")], large=large))
    other = digest(tmp_path, container([(0, b"graph"), (1, b"Weights"), (2, b"task")], large=large))
    assert first == second != other
    assert "" not in {first, other}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"IMOD",
        b"ONNX" * 100,
        container([(0, b"graph"), (1, b"weights")], models=2),
        container([(0, b"graph"), (1, b"weights")], encrypted=1),
        container([(0, b"graph")]),
        container([(0, b"graph"), (1, b"weights")])[:-3],
        container([(0, b"graph"), (1, b"weights")])[:270],
        container([]),
        container([(0, b"")] * 65),
    ],
    ids=["empty", "magic", "onnx", "models", "locked", "none", "cut", "table", "no parts", "many"],
)
def test_a_file_that_does_not_tell(tmp_path, data):
    """It has weights of its own, then."""
    assert digest(tmp_path, data) == ""


def test_the_simulator_writes_such_files(tmp_path):
    """Shapes do not count, seeds do."""
    paths = [
        write_om(tmp_path / f"{rows}.{seed}.om", MatMul(seed=seed), Static({"x": (rows, 8)}))
        for rows, seed in ((1, 1), (2, 1), (1, 2))
    ]
    one, same, other = map(weights_digest, paths)
    assert one == same != other
