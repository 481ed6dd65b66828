"""The four roots of the product, and what pages call their files.

`serving/opening.py` is a file of `ge_backend`, `ge_text/engine/plan.py` one of another root.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BACKEND = "ge_backend"
ROOTS = {
    BACKEND: ROOT / "backend" / "ge" / BACKEND,
    "ge_text": ROOT / "backend" / "ge" / "ge_text",
    "ge_openai": ROOT / "frontend" / "ge_openai",
    "ge_tools": ROOT / "tools" / "ge_tools",
}
# Where the tests of a root are.
TESTS = {BACKEND: "backend", "ge_text": "text", "ge_openai": "frontend", "ge_tools": "tools"}


def sources() -> list[Path]:
    """Return every source file, in order."""
    return sorted(path for root in ROOTS.values() for path in root.rglob("*.py"))


def root_of(path: Path) -> str:
    """Return the name of the root that a file is in."""
    return next(name for name, root in ROOTS.items() if path.is_relative_to(root))


def shown(path: Path) -> str:
    """Return what pages call a file."""
    root = root_of(path)
    inside = path.relative_to(ROOTS[root]).as_posix()
    return inside if root == BACKEND else f"{root}/{inside}"


def source(name: str) -> Path:
    """Return the file that pages call so, whether it is there or not."""
    root, _, inside = name.partition("/")
    return ROOTS[root] / inside if root in ROOTS else ROOTS[BACKEND] / name
