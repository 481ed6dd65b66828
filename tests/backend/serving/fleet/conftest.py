"""A fleet for each test that asks for one."""

import pytest

from builders.fleets import Fleets


@pytest.fixture
def fleets(tmp_path):
    made = []

    def make(count, **model):
        made.append(Fleets(tmp_path, count, **model))
        return made[-1]

    yield make
    for each in made:
        each.close()
