"""Rows that stay on an NPU, as values."""

from ge_backend.device.acl.resident import Resident, Rows


def spans(nbytes, *places):
    return list(Rows(nbytes=nbytes, places=places).spans())


def test_rows_side_by_side_are_one_span():
    """In the tensor's order; one after another in memory is not enough if it is backwards."""
    assert spans(64, 640, 704, 768) == [(0, 640, 192)]
    assert spans(64, 640, 768, 832, 64) == [(0, 640, 64), (64, 768, 128), (192, 64, 64)]
    assert spans(64, 704, 640) == [(0, 704, 64), (64, 640, 64)]
    assert spans(64, 640, 640) == [(0, 640, 64), (64, 640, 64)]
    assert spans(64) == []


def test_outputs_are_renamed_and_inputs_are_not():
    """A compiler renames the outputs alone."""
    rows = Rows(nbytes=64, places=(0,))
    resident = Resident(
        shapes={"h": (1, 16)},
        sources={"h": rows},
        targets={"next": rows},
        hidden=frozenset({"next"}),
    )
    renamed = resident.renamed({"y": "node:0:y", "next": "node:1:next"})
    assert (renamed.shapes, renamed.sources) == (resident.shapes, resident.sources)
    assert renamed.targets == {"node:1:next": rows}
    assert renamed.hidden == {"node:1:next"}
