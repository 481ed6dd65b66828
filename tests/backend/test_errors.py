"""Every error this package raises."""

import re

import pytest

from ge_backend import errors
from ge_backend.errors import GeError, GraphFailed, Status, error_from_name

LEAVES = GeError.__subclasses__()


def test_the_module_text_draws_the_tree():
    """Each line of the tree in the module's text is a class with that status, and none is missing."""
    drawn = dict(re.findall(r"^ +(\w+) +([A-Z_]{4,}) ", errors.__doc__, flags=re.MULTILINE))
    assert drawn == {kind.__name__: kind.status.name for kind in (GeError, *LEAVES)}


def test_the_tree_is_two_deep():
    """Leaves have no leaves, so a handler never catches more than it names."""
    assert [leaf.__subclasses__() for leaf in LEAVES] == [[]] * len(LEAVES)


def test_everything_is_exported():
    """`__all__` is sorted and has every error."""
    assert errors.__all__ == sorted(errors.__all__, key=lambda name: (name[0].islower(), name))
    assert {leaf.__name__ for leaf in LEAVES} < set(errors.__all__)


@pytest.mark.parametrize("leaf", LEAVES)
def test_an_error_crosses_a_process_as_two_strings(leaf):
    """Class name and message are enough to make the same error again."""
    sent = leaf("what failed; what to change")
    made = error_from_name(type(sent).__name__, str(sent))
    assert type(made) is leaf
    assert str(made) == str(sent)


@pytest.mark.parametrize("name", ["FromTheFuture", "", "Status", "GeError"])
def test_an_unknown_name_becomes_the_base(name):
    """An error of a newer executor keeps its message and is INTERNAL."""
    made = error_from_name(name, "text")
    assert (type(made), str(made), made.status) == (GeError, "text", Status.INTERNAL)


def test_a_failed_graph_is_not_the_clients_fault():
    """Only errors that a client can mend are INVALID_ARG."""
    assert GraphFailed("x").status is Status.INTERNAL
    assert errors.InvalidRequest("x").status is Status.INVALID_ARG


def test_of_what_nobody_foresaw_its_kind_and_words_are_told():
    """The traceback is in the log, which the text names."""
    told = errors.unforeseen(KeyError("x"), errors.DeviceUnavailable)
    assert type(told) is errors.DeviceUnavailable
    assert str(told) == "KeyError: 'x' (see the server's log)"
