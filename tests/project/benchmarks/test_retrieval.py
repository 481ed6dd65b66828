"""The task of finding a page's texts by their headings, and what a row of the table says of it."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from pathlib import Path

from tools.probes.bench_precision import TITLES, Result, Way, described, named
from tools.probes.retrieval import MIN_WORDS, Found, Section, found, sections

LONG, SHORT = "word " * MIN_WORDS, "few words"


def test_sections_are_what_stands_below_headings(tmp_path):
    """Those that say little, and what stands above the first one, are left out."""
    page = f"above {LONG}\n# One\n{LONG}\n\n## Two\n{SHORT}\n### Three\n{LONG}\n"
    (tmp_path / "page.md").write_text(page)
    expected = [Section(heading=name, text=LONG.strip()) for name in ("One", "Three")]
    assert sections(tmp_path) == expected


def test_places_are_counted_from_the_nearest_on():
    """However long vectors are."""
    texts = np.eye(4, dtype=np.float32)
    queries = np.array([[5, 0, 0, 0], [3, 2, 1, 0], [0, 0, 1, 0], [0, 0, 0, 9]], np.float32)
    assert found(queries, texts) == Found(first=0.75, reciprocal=pytest.approx(3.5 / 4))


def test_a_row_says_how_far_its_embeddings_are_from_those_in_full():
    """The mean of all texts, and the one that is furthest; and what it was computed in."""
    full, other = (
        Result(
            ms={24: 1.0, 128: 2.0}, megabytes=3.2, texts=texts, queries=np.eye(2), computed_in=how
        )
        for texts, how in ((np.eye(2), "int8"), (np.array([[1, 0], [3, 4]]), "origin"))
    )
    way = Way(encoder="e", path=Path("m.onnx"), output="y", engine="openvino", precision="int8")
    row = described(way, other, full)
    cells = ("e", "openvino", "int8 (as origin)", "3", "1.000", "1.0000", "0.90000", "0.8000")
    assert tuple(row[title] for title in TITLES) == cells
    assert row["ms"] == [1.0, 2.0]


def test_encoders_are_files_or_folders(tmp_path):
    """Of a file the name of its embeddings is said, too."""
    file = tmp_path / "m.onnx"
    assert named([f"one={file}:461", f"two={tmp_path}"]) == (
        {"one": (file, "461")},
        {"two, checkpoint": tmp_path},
    )
