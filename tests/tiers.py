"""Which tests `make test` leaves to `make test-all`, and in which order files begin.

`make test` runs what a change to the product needs; the long tier has what builds, replays or
installs whole things, and what tests the workshop rather than the product. A test marked `long`
belongs to it, too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

__all__ = ["LONG", "file_of", "is_long", "longest_first", "read_durations", "written_durations"]

HERE = Path(__file__).resolve().parent
# Seconds by file, as `python tests/durations.py` wrote them.
DURATIONS = HERE / "durations.json"
# What a file that is not listed takes; most take less than the shortest that is.
UNKNOWN_S = 1.0

# Folder or file below tests/ -> why it can wait.
LONG = {
    "server/test_clients.py": "installs clients of the ecosystem and runs them",
    "server/test_demo.py": "the demo, as a user starts it",
    "server/test_docs_commands.py": "every command of the pages is run",
    "server/test_docs_from_python_model.py": "the page is replayed",
    "server/test_docs_python.py": "the page is replayed",
    "server/test_docs_tutorial.py": "the page is replayed",
    "server/test_import.py": "exports real encoders",
    "server/test_openai_real_vllm_backend.py": "starts Triton's vLLM backend",
    "server/test_trust.py": "faults under load",
    "server/test_vllm.py": "installs and starts vLLM",
    "server/test_wheel.py": "builds and installs the wheel",
    "project/acl_simulator": "tests of the simulator itself",
    "project/benchmarks": "tests of the benchmarks",
    "project/demo": "tests of the demo",
    "project/deploy": "tests of container and cluster files",
    "backend/engines/ov/test_quantised_files.py": "installs NNCF, quantises a real encoder",
    "backend/engines/torch/test_encoder_export.py": "exports real encoders",
}


def is_long(path: Path) -> bool:
    """Whether a test file below tests/ belongs to the long tier."""
    parts = file_of(path).split("/")
    return any("/".join(parts[:end]) in LONG for end in range(1, len(parts) + 1))


def file_of(path: Path) -> str:
    """Return a file's place below tests/, as the tables name it."""
    return path.relative_to(HERE).as_posix() if path.is_relative_to(HERE) else path.as_posix()


def read_durations() -> dict[str, float]:
    """Return the seconds that files take, by their place below tests/."""
    return json.loads(DURATIONS.read_text()) if DURATIONS.is_file() else {}


def longest_first(path: Path, durations: Mapping[str, float]) -> tuple[bool, float]:
    """Return a file's key in the order that keeps every worker busy to the end.

    Files with the real server come before all others: a server ends beside the next of them, and
    any other file waits for that.
    """
    name = file_of(path)
    return not name.startswith("server/"), -durations.get(name, UNKNOWN_S)


def written_durations(report: Path) -> dict[str, float]:
    """Return the seconds by file of a run's JUnit report, the longest first; above a second."""
    seconds: dict[str, float] = {}
    for case in ET.parse(report).iter("testcase"):
        parts = case.attrib["classname"].split(".")
        start = parts.index("tests") + 1 if "tests" in parts else 0
        while parts and not (HERE / "/".join(parts[start:])).with_suffix(".py").is_file():
            parts.pop()  # a class of tests
        name = "/".join(parts[start:]) + ".py"
        seconds[name] = seconds.get(name, 0.0) + float(case.attrib["time"])
    ordered = sorted(seconds.items(), key=lambda pair: -pair[1])
    return {name: round(took, 1) for name, took in ordered if took > UNKNOWN_S}
