"""Nothing measures time with a clock that can be set: a jump of the machine's clock is not noticed."""

import ast

from builders.roots import shown, sources

# Functions whose result jumps with the machine's clock.
SETTABLE = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
# File -> why it may: it states a moment to people, or to another machine.
ALLOWED = {
    "ge_tools/page/recording.py": "a report says when its recording began",
    "ge_openai/app.py": "OpenAI's answers say when they were made",
    "ge_openai/chat_template.py": "a chat template may ask for today's date",
    "ge_openai/vector_endpoints.py": "so do scores",
    "serving/host_server.py": "when a file was changed, the file system says by that clock alone",
}


def settable_clocks(path):
    """Return the lines of a file that read such a clock."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and (call.func.value.id, call.func.attr) in SETTABLE
    ]


def test_times_are_measured_with_a_clock_that_nobody_sets():
    """Deadlines, heartbeats, costs and time-outs go by CLOCK_MONOTONIC."""
    found = {shown(path) for path in sources() if settable_clocks(path)}
    assert found == set(ALLOWED)
