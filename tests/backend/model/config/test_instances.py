"""What the host calls the instances of a model, and which one a name is."""

import pytest

from ge_backend.model.config.instances import instance_names, instance_number


@pytest.mark.parametrize(
    ("groups", "names"),
    [
        ([], ("m_0",)),
        ([{}], ("m_0_0",)),
        ([{"count": 2}, {"kind": "KIND_CPU"}], ("m_0_0", "m_0_1", "m_1_0")),
        ([{"name": "left", "count": 1}, {"name": "right", "count": 1}], ("left_0", "right_0")),
        ([{"name": "left", "count": 2}, {"count": 0}], ("left_0", "left_1", "m_1_0")),
    ],
)
def test_instances_are_numbered_through_all_groups(groups, names):
    """Not within each: two groups of one instance have two numbers."""
    config = {"name": "m", "instance_group": groups}
    assert instance_names(config) == names
    assert [instance_number(config, name) for name in names] == list(range(len(names)))


def test_a_name_that_is_not_listed_is_the_first():
    """So that a host that calls them otherwise still serves."""
    assert instance_number({"name": "m"}, "unheard_of_7") == 0
