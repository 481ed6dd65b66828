"""Decision 0005: unforeseen errors are caught at the boundaries that are named here, and nowhere else."""

import ast

from builders.roots import shown, sources

# File -> how many `except Exception` it has, and what each catches.
BOUNDARIES = {
    "host/backend.py": (2, "a batch; a request that cannot be read"),
    "host/codec.py": (1, "a response that could not be sent"),
    "executor/server/graphs.py": (1, "the need for scratch of a run"),
    "executor/server/lanes.py": (
        3,
        "a job; one that the watch drops; a message, whose request is answered",
    ),
    "ge_text/engine/runner.py": (1, "a step, repeated in parts"),
    "ge_text/stub/client.py": (1, "a response that could not be sent"),
    "executor/client/served_files.py": (1, "opening again, from a copy"),
    "serving/learning/learner.py": (1, "an attempt to learn"),
    "executor/client/reopening.py": (1, "an attempt to reopen"),
    "engines/preprocess/load.py": (1, "a library that raises anything"),
    "engines/preprocess/tokenizer.py": (1, "a library that raises anything"),
    "engines/preprocess/text.py": (2, "a library that raises anything"),
    "ge_text/models/timed_compiler.py": (1, "handed to the thread that waits"),
    "ge_text/vllm/model.py": (2, "a text; a start"),
    "engines/torch/encoder_export.py": (2, "a library that raises anything"),
    "ge_tools/tritonserver/model_reloader.py": (1, "a look at the stubs"),
    "ge_openai/chat_template.py": (1, "a library that raises anything"),
    "ge_openai/contents.py": (1, "a library that raises anything"),
    "ge_openai/tokenizer.py": (2, "a library that raises anything"),
    "ge_openai/connected.py": (1, "handed to the reader"),
}


def handlers(name):
    """Return (file, handler) for each place of the package that catches errors of this type."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and getattr(node.type, "id", "") == name:
                yield shown(path), node


def test_unforeseen_errors_are_caught_where_the_decision_says():
    """Every `except Exception` is named above, and none that is not there."""
    there = [file for file, _ in handlers("Exception")]
    assert {f: times for f, (times, _) in BOUNDARIES.items()} == {f: there.count(f) for f in there}


def test_base_exceptions_go_on():
    """Who catches everything, to clean up, raises it again."""
    found = list(handlers("BaseException"))
    assert len(found) > 5
    for file, handler in found:
        assert any(isinstance(node, ast.Raise) for node in ast.walk(handler)), (
            f"{file}:{handler.lineno}"
        )
