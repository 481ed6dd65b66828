"""Compiling takes no longer than a request may wait."""

import threading

import pytest

from builders.null_models import comes_true
from ge_backend.errors import DeviceUnavailable, InvalidRequest
from ge_text.models.structure import Structure, StructureKind
from ge_text.models.timed_compiler import TimedCompiler, on_a_deep_stack


def regex(text):
    return Structure(StructureKind.REGEX, text)


@pytest.fixture
def waiting(monkeypatch):
    """Return what compiles, but waits for `gate` over every structure that says so."""
    monkeypatch.setattr("ge_text.models.timed_compiler.COMPILE_TIMEOUT_S", 0.05)
    gate, begun = threading.Event(), []

    def work(structure):
        begun.append(structure.text)
        if structure.text.startswith("slow"):
            assert gate.wait(10)
        if structure.text.endswith("wrong"):
            raise InvalidRequest("it is wrong")
        return structure.text

    compiler = TimedCompiler(work)
    yield compiler, gate, begun
    gate.set()


def finished(compiler):
    for future in compiler._late.values():
        future.exception(10)


def test_what_takes_too_long_is_refused_and_used_once_it_is_done(waiting):
    """Nobody waits for it a second time, and it is compiled once."""
    compiler, gate, begun = waiting
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="guided_regex cannot be compiled: it takes more"):
            compiler(regex("slow"))
    assert compiler(regex("quick")) == "quick"
    gate.set()
    finished(compiler)
    assert compiler(regex("slow")) == "slow"
    assert begun == ["slow", "quick"]


def test_few_that_take_too_long_are_compiled_at_once(waiting):
    """Each takes a core; others are refused until one of them has ended."""
    compiler, gate, _ = waiting
    for text in ("slow 1", "slow 2"):
        with pytest.raises(InvalidRequest, match="takes more"):
            compiler(regex(text))
    with pytest.raises(DeviceUnavailable, match=r"2 that take too long .* ask again later"):
        compiler(regex("quick"))
    gate.set()
    finished(compiler)
    assert compiler(regex("quick")) == "quick"
    assert not compiler._late


def test_what_is_wrong_is_told_however_long_it_took(waiting):
    """In the words of whatever found it."""
    compiler, gate, _ = waiting
    with pytest.raises(InvalidRequest, match="it is wrong"):
        compiler(regex("wrong"))
    with pytest.raises(InvalidRequest, match="takes more"):
        compiler(regex("slow and wrong"))
    gate.set()
    finished(compiler)
    with pytest.raises(InvalidRequest, match="it is wrong"):
        compiler(regex("slow and wrong"))


def test_a_deep_stack_holds_up_no_end_of_the_process():
    """Its thread is a daemon, whose stack is its own."""
    before = threading.stack_size()
    assert on_a_deep_stack(lambda: threading.current_thread().daemon)
    assert threading.stack_size() == before


def test_a_compiler_that_panics_fails_its_request(monkeypatch):
    """A panic of Rust's is no `Exception`; nothing waits for it all the same, and its thread just ends."""
    unhandled = []
    monkeypatch.setattr(threading, "excepthook", unhandled.append)

    def panic():
        raise BaseException("panic")  # noqa: TRY002 - as pyo3's are

    with pytest.raises(RuntimeError, match="compiler has failed"):
        on_a_deep_stack(panic)
    assert comes_true(lambda: all(each.name != "structure" for each in threading.enumerate()))
    assert [each.exc_type for each in unhandled] == [SystemExit]
