"""Tables of measured memory."""

from benchmarks.memory_report import Measured, by_role, markdown

MIB = 1 << 20


def measured(system, what, count, **roles):
    return Measured(
        system=system,
        what=what,
        count=count,
        bytes_by_role={role: mib * MIB for role, mib in roles.items()},
    )


FOUND = [
    measured("ge", "models", 1, host=20, stub=30, executor=150),
    measured("python", "models", 1, host=20, stub=180),
    measured("ge", "models", 4, host=20, stub=120, executor=420),
    measured("python", "models", 4, host=20, stub=720),
    measured("ge", "instances", 1, host=20, stub=30, executor=150),
    measured("python", "instances", 1, host=20, stub=180),
]


def test_a_table_in_markdown():
    """Sums of all processes; what one more costs, where there are several counts."""
    assert markdown(FOUND) == (
        "| | ge | python |\n"
        "| --- | --- | --- |\n"
        "| 1 model | 200 | 200 |\n"
        "| 4 models | 560 | 740 |\n"
        "| one more model | 120 | 180 |\n"
        "| 1 instance | 200 | 200 |"
    )


def test_a_table_of_processes():
    """Of one system, a column per kind of process; a kind that it lacks takes nothing."""
    assert by_role(FOUND, "python") == (
        "| | host | stubs | executor |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| 1 model | 20 | 180 | 0 |\n"
        "| 4 models | 20 | 720 | 0 |\n"
        "| 1 instance | 20 | 180 | 0 |"
    )
