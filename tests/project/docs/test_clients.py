"""The clients that docs/openai.md names are those that are run."""

from pathlib import Path

from builders.clients import CLIENTS, SCRIPTS, row

PAGE = Path(__file__).resolve().parents[3] / "docs" / "openai.md"


def test_the_page_names_each_client_with_its_version():
    """In the order in which they are run, and no others."""
    lines = PAGE.read_text().splitlines()
    start = lines.index(row(CLIENTS[0]))
    assert lines[start : start + len(CLIENTS)] == [row(client) for client in CLIENTS]
    assert lines[start + len(CLIENTS)] == ""
    assert lines[start - 1] == ""


def test_every_script_is_run_by_a_client():
    """None is left behind, and each says what it does."""
    assert {path.name for path in SCRIPTS.glob("*.py")} == {client.script for client in CLIENTS}
    assert all(client.does for client in CLIENTS)
