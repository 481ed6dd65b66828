"""Vulnerabilities fail the check unless somebody said why they do not matter; no index never does."""

import importlib.util
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "deploy" / "audit.py"


@pytest.fixture
def audit():
    spec = importlib.util.spec_from_file_location("audit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(pattern, text):
    """Return packages' names in the form that PEP 503 compares."""
    return {name.replace("_", "-").lower() for name in re.findall(pattern, text)}


SOUND = {"name": "a", "version": "1", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "not found"}
HOLE = {"id": "PYSEC-1", "aliases": ["CVE-2"], "fix_versions": ["2"]}
LEAKY = {"name": "c", "version": "1", "vulns": [HOLE]}


def test_sound_dependencies_pass(audit):
    """And it is said how many could be looked at."""
    assert audit.verdict([SOUND, UNKNOWN]) == ("1 of 2 pinned dependencies were audited", 0)


def test_a_vulnerability_fails_with_what_mends_it(audit):
    """Unless a reason is listed, under any of its names."""
    text, status = audit.verdict([SOUND, LEAKY])
    assert status == 1
    assert "c 1: PYSEC-1, fixed in 2" in text
    audit.KNOWN = {"CVE-2": "only where c listens to strangers"}
    text, status = audit.verdict([LEAKY])
    assert (status, "only where c listens" in text) == (0, True)


def test_without_an_index_nothing_fails(audit, monkeypatch, capsys):
    """Offline, or where the index knows no such package, it is said."""
    assert audit.verdict([UNKNOWN])[1] == 0
    failed = SimpleNamespace(stdout="", returncode=1)
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: failed)
    assert audit.main() == 0
    late = subprocess.TimeoutExpired("pip_audit", 1)

    def slow(*_, **__):
        raise late

    monkeypatch.setattr(audit.subprocess, "run", slow)
    assert audit.main() == 0
    assert capsys.readouterr().out.count("were not audited") == 2


def test_whatever_an_extra_installs_is_pinned(audit):
    """Or it would be audited by nobody; torch_npu has a file of its own."""
    project = (audit.PINNED.parent / "pyproject.toml").read_text()
    extras = re.search(r"(?ms)^\[project\.optional-dependencies\]\n(.+?)^\[", project)[1]
    asked = names(r'"([\w-]+)[^"]*"', extras)
    assert len(asked) > 30
    assert asked - names(r"(?m)^([\w-]+)==", audit.PINNED.read_text()) == {"torch-npu"}


def test_what_is_audited_is_what_is_pinned(audit):
    """Every reason in the list says something."""
    assert audit.PINNED.is_file()
    assert all(audit.KNOWN.values())
