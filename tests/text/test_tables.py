"""What tables of the backend name of text generation is there."""

import ast
import importlib
import importlib.util
import typing
from pathlib import Path

import pytest

from ge_backend.executor.server.services import SERVICES
from ge_backend.kinds import TEXT
from ge_backend.model.config.engine_table import LANGUAGE_ENGINES


def test_every_name_of_the_kind_is_there():
    """A row of strings is right only if each of them can be resolved; host modules are read."""
    for place in filter(None, (TEXT.matches, TEXT.completes, TEXT.opens)):
        module, _, wanted = place.partition(":")
        source = Path(importlib.util.find_spec(module).origin).read_text()
        assert wanted in {getattr(node, "name", "") for node in ast.parse(source).body}


@pytest.mark.parametrize("row", LANGUAGE_ENGINES, ids=lambda row: row.name)
def test_a_row_names_an_opener_that_is_there(row):
    """Read, not imported, as above. It takes what is asked for."""
    module, _, name = row.opener.partition(":")
    tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text())
    opener = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    assert [argument.annotation.id for argument in opener.args.args] == ["OpenLanguage"]
    assert opener.returns.id == "OpenedLanguage"


def test_the_table_names_classes_that_exist():
    """Every kind can be imported, and has what a service and its members have; each reads keys of its own."""
    for place in SERVICES.values():
        module, _, name = place.partition(":")
        service = getattr(importlib.import_module(module), name)
        member = typing.get_type_hints(service.join)["return"]
        for owner, methods in ((service, ("join", "close")), (member, ("receive", "leave"))):
            for method in methods:
                assert callable(getattr(owner, method))
