"""Marks by folder, and `GE_REQUIRE`, which keeps skips from hiding.

`GE_REQUIRE=server,npu` fails every test that is marked so and skipped: where a machine is meant to
have something, its absence is a failure.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from concurrent.futures import Future, wait
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from absent import leave_out

ABSENT = os.environ.get("GE_ABSENT", "")
leave_out(ABSENT)  # before anything of the product is imported

from tiers import is_long, longest_first, read_durations  # noqa: E402

TESTS = Path(__file__).resolve().parent
# A folder of this name marks what is in it.
FOLDERS = ("server", "process", "contract")
LOGS = pytest.StashKey[dict[str, Path]]()
ENDING = pytest.StashKey[list[Future[None]]]()
TAIL_LINES = 80
# As `make test` says it: of properties that say no number themselves, it tries fewer examples.
SHORT = "not long"
SHORT_EXAMPLES = 25


@pytest.fixture(scope="session")
def example_models(tmp_path_factory) -> Path:
    """The model repository of this project with its model files, which git does not have.

    They are made once in a run, and each of its workers has a copy.
    """
    for library in ("onnx", "onnxruntime", "tokenizers", "torch"):
        pytest.importorskip(library)
    models = tmp_path_factory.mktemp("models")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        make_models(models)
        return models
    run = tmp_path_factory.getbasetemp().parent
    with (run / "models.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made := run / "models").is_dir():
            make_models(models)
            shutil.copytree(models, made)
            return models
    return Path(shutil.copytree(made, models, dirs_exist_ok=True))


def make_models(models: Path) -> None:
    """Write the model repository of this project, with its model files, to a folder."""
    script = TESTS.parent / "model_repository" / "make.py"
    subprocess.run([sys.executable, str(script), "--into", str(models)], check=True)


def pytest_configure(config):
    config.stash[LOGS] = {}
    config.stash[ENDING] = []
    if "ge_backend" not in ABSENT.split(","):
        from fakes.null_device import use_here

        use_here()
    # How long an example takes depends on what else the machine does.
    patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("whole", **patient)
    settings.register_profile("short", max_examples=SHORT_EXAMPLES, **patient)
    settings.load_profile("short" if config.option.markexpr == SHORT else "whole")
    os.environ.setdefault("TEST_PYTHON", sys.executable)  # what `fakes/null_python` becomes
    # By default it depends on the machine, and tests count executors.
    os.environ.setdefault("GE_SPARE", "off")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # also where a test imports it by itself


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.option.dist != "loadfile":
        return None
    from workers import FileScheduling

    return FileScheduling(config, log)


def pytest_collection_modifyitems(items):
    for item in items:
        folder = folder_of(item.path)
        if folder in FOLDERS:
            item.add_marker(folder)
        if is_long(item.path):
            item.add_marker("long")
    durations = read_durations()
    items.sort(key=lambda item: longest_first(item.path, durations))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    marks = {mark.name for mark in item.iter_markers()}
    if report.failed and "server" in marks:
        for name, log in item.config.stash[LOGS].items():
            report.sections.append((f"end of the log of {name}", tail(log)))
    return refuse_skip(report, marks)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return refuse_skip(report, {folder_of(collector.path)})


def refuse_skip(report, marks):
    """Return the report, failed if it is a skip of what `GE_REQUIRE` names."""
    required = set(os.environ.get("GE_REQUIRE", "").split(",")) & marks
    if report.skipped and required and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"GE_REQUIRE={','.join(required)} forbids this skip: {report.longrepr}"
    return report


def folder_of(path: Path) -> str:
    """Return the first folder of a path below tests/, "" if there is none."""
    parts = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return parts[0] if parts else ""


def tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    """No test reads or writes the user's own cache; servers hand this one on to their stubs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def server_logs(pytestconfig) -> dict[str, Path]:
    """Logs by name; the end of each is attached to failures while it is in here."""
    return pytestconfig.stash[LOGS]


@pytest.fixture(scope="module", autouse=True)
def alone(request, pytestconfig):
    """Servers end beside the next tests of servers, but before any others.

    Those count what this process has open and which children, and replace what its threads call.
    """
    if folder_of(request.path) != "server":
        wait(pytestconfig.stash[ENDING])


@pytest.fixture(scope="session")
def servers_ending(pytestconfig) -> list[Future[None]]:
    """Servers that are being stopped, or have been."""
    return pytestconfig.stash[ENDING]
