"""Weights of eight bits are served where answers stay near, else the next precision is."""

import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest

from builders.opened_graph import opened_graph
from ge_backend.errors import DeviceUnavailable
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.serving.assumptions import precision as module
from ge_backend.serving.assumptions.completion import whole_document
from ge_backend.serving.assumptions.precision import (
    cosine,
    in_precision,
)
from ge_backend.serving.warmup.store import Store
from ge_backend.serving.warmup.verdict import FAILS, HOLDS, NOT_TESTED, TAKEN

pytest.importorskip("onnx")
pytest.importorskip("openvino")

from builders.products import encoder
from ge_backend.engines.ov import arithmetic

COUNT = itertools.count()


@pytest.fixture(autouse=True)
def products(monkeypatch):
    """A processor that multiplies numbers of eight bits, or is taken for one."""
    monkeypatch.setattr(arithmetic, "has_int8", lambda: True)


@pytest.fixture
def judge(tmp_path):
    """A function that tests a model's precision: its verdict, what follows, and who was asked."""

    def judge(model, precision="int8", *, store=None, wrong=None, assume=""):
        folder = tmp_path / str(next(COUNT))
        folder.mkdir()
        said = {"parameters": {"assume": {"string_value": assume}}} if assume else {}
        kept, asked = store or Store(None), []
        with opened_graph(folder, model, engine="openvino", precision=precision, **said) as (
            session,
            read,
        ):
            config = read(**whole_document({"name": "m", **said}, read(), session, kept))
            config = replace(config, precision=precision)

            def reference(name, how):
                asked.append((name, how))
                if wrong is not None:
                    raise wrong
                source = replace(session.source, engine=name, precision=how)
                connect = functools.partial(connect_inline, "cpu", 0, 0)
                return Session(connect, source, arena_bytes=1 << 16, on_restart=print)

            reopened = []

            def next_one(lower):
                reopened.append(lower)
                return session

            last, _, judged = in_precision(config, session, kept, reference, next_one)
            verdict = next((v for v in judged.verdicts if v.assumption == "precision"), None)
            lower = next(iter(reopened), None)
            assert last is (lower or config)
        return verdict, lower, asked

    return judge


def test_near_answers_are_served(judge):
    """The verdict says how near they were, of the same graph in the file's own precision."""
    verdict, lower, asked = judge(encoder())
    assert (verdict.verdict, lower) == (HOLDS, None)
    assert float(verdict.figure.split()[1]) >= module.MIN_COSINE
    assert asked == [("openvino", "origin")]


def test_answers_that_are_too_far_are_served_in_the_next_precision(judge):
    """The verdict says so, with the figure, and how to have it all the same."""
    verdict, lower, _ = judge(encoder(spoilt=True))
    assert verdict.verdict == FAILS
    assert lower.precision == "bf16"
    assert float(verdict.figure.split()[1].rstrip(",")) < module.MIN_COSINE
    assert "served in 'bf16'; the parameter 'assume: precision' keeps it" in verdict.line()


def test_who_takes_it_as_given_is_not_asked(judge):
    """The model stays in the precision that it was given."""
    verdict, lower, asked = judge(encoder(spoilt=True), assume="precision")
    assert (verdict.verdict, lower, asked) == (TAKEN, None, [])


@pytest.mark.parametrize("precision", ["origin", "bf16"])
def test_other_precisions_have_no_such_test(judge, precision):
    """What they make of numbers is the same for every model."""
    assert judge(encoder(), precision) == (None, None, [])


def test_what_is_not_computed_in_eight_bits_is_not_compared(judge, monkeypatch):
    """As on a processor without their products: it would be compared with itself."""
    monkeypatch.setattr(arithmetic, "has_int8", lambda: False)
    assert judge(encoder()) == (None, None, [])


def test_what_cannot_be_opened_in_full_is_not_tested(judge):
    """It is served as it was asked for."""
    verdict, lower, _ = judge(encoder(), wrong=DeviceUnavailable("no memory"))
    assert (verdict.verdict, lower) == (NOT_TESTED, None)
    assert "no memory" in verdict.tested


def test_a_second_start_finds_the_verdict(judge, tmp_path):
    """Nothing is opened beside it then."""
    store = Store(tmp_path / "kept")
    first, _, asked = judge(encoder(), store=store)
    again, _, not_asked = judge(encoder(), store=store)
    assert (first, len(asked), not_asked) == (again, 1, [])


@pytest.mark.parametrize(
    ("expected", "found", "least"),
    [
        ([[1, 0], [0, 2]], [[2, 0], [0, 1]], 1.0),
        ([[1, 0], [1, 0]], [[1, 0], [0, 1]], 0.0),
        ([[0, 0]], [[0, 0]], 1.0),
        ([[0, 0]], [[1, 0]], -1.0),
        ([[1, 0]], [[np.nan, 0]], -1.0),
    ],
)
def test_the_row_that_is_furthest_counts(expected, found, least):
    """Nothing is near what is not there, and what is no number is near nothing."""
    arrays = (np.array(each, np.float32) for each in (expected, found))
    assert cosine(*arrays) == pytest.approx(least)
