"""Parameters that were removed."""

from ge_backend.model.config.removed import REMOVED
from ge_backend.model.config.settings import GENERATION_SETTINGS, SETTINGS


def test_what_was_removed_is_no_setting():
    """A name has one meaning: it works, or its model's log says what became of it."""
    assert REMOVED.keys().isdisjoint(setting.key for setting in (*SETTINGS, *GENERATION_SETTINGS))
