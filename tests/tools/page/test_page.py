"""The page as a whole."""

import re
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from builders.recordings import RUNS, past_run, reading, recording, text_reading
from ge_tools.page.page import pictures, render
from ge_tools.watch.executors import DeviceRuns

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Outline(HTMLParser):
    """Sees that what is opened is closed, and collects texts and addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.addresses, self.tags = [], [], [], set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.addresses += [v for k, v in attributes if k in {"src", "href", "xlink:href"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.addresses += [v for k, v in attributes if k in {"src", "href", "xlink:href"}]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append(text.strip())


def run_recording(model):
    """Return a recording of one run of a model."""
    run = past_run(1, came_ms=0, started_ms=1, ended_ms=5, model=model)
    return recording(model, devices=(DeviceRuns(device="cpu", pid=1, runs=(run,), missed=0),))


def text_recording(model):
    """Return a recording of a model that generates text."""
    return recording(readings=(text_reading(10.0, 0, model), text_reading(12.0, 1, model)))


@pytest.fixture(scope="module")
def page():
    return Outline(render(recording()))


def test_it_tells_the_numbers_of_the_recording(page):
    """In a table: requests, per second, failed, rows, batches and so on."""
    cells = [text for text in page.texts if text]
    at = cells.index("encoder")
    assert cells[at : at + 11] == [
        *("encoder", "100", "50.0", "2", "200", "40"),
        *("5.0", "40", "1.25x", "3.00x", "8 %"),
    ]


def test_nothing_is_loaded_from_elsewhere(page):
    """Every address is a part of the page itself, and there is no script."""
    assert page.addresses
    assert all(address.startswith("#") for address in page.addresses)
    assert "script" not in page.tags
    assert not re.search(r"@import|url\((?!#)", render(recording()))


def test_every_picture_has_its_title(page):
    """One for each thing that the recording tells of."""
    assert [picture.title for picture in pictures(recording())] == [
        "Requests",
        "Lengths and buckets",
        "Padding",
        "Where the time goes",
        "Latency",
        "Lanes",
        "Timeline of the executor of cpu",
        "Workspace pool",
    ]
    assert {picture.title for picture in pictures(recording())} <= set(page.texts)


def test_it_tells_what_runs_each_model():
    """Where its time is told; nothing where no engine is known."""
    time = {p.title: p.text for p in pictures(recording())}["Where the time goes"]
    assert time.endswith(" Runs: encoder in openvino.")


def test_names_are_escaped():
    """A model may be called what a folder may be called."""
    text = render(recording(model="<script>alert('$x$')"))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("model", ["encoder", "_encoder"])
@pytest.mark.parametrize(
    ("title", "recorded"),
    [
        ("Requests", recording),
        ("Timeline of the executor of cpu", run_recording),
        ("Tokens", text_recording),
        ("Cache", text_recording),
    ],
)
def test_a_picture_tells_which_line_is_which_model(title, recorded, model):
    """Also of one whose name begins with what matplotlib takes for a line without a name."""
    (picture,) = [p for p in pictures(recorded(model)) if p.title == title]
    figure = Figure()
    picture.draw(figure)
    (legend,) = figure.legends
    assert [text.get_text().strip() for text in legend.get_texts()] == [model]


def test_without_executors_it_says_why_something_is_missing():
    """The metrics still tell the rest."""
    far = recording(devices=(), note="no executor & nothing")
    titles = [picture.title for picture in pictures(far)]
    assert titles == [
        *("Requests", "Lengths and buckets", "Padding", "Where the time goes"),
        "Workspace pool",
    ]
    assert "no executor &amp; nothing" in render(far)


def test_what_was_missed_is_told():
    """A timeline with holes must not look whole."""
    missed = DeviceRuns(device="cpu", pid=1, runs=RUNS, missed=77)
    assert "77 runs ended faster" in render(recording(devices=(missed,)))


def test_percentiles_of_requests_need_a_word_to_the_server(page):
    """It says which."""
    assert any("summary_latencies=true" in text for text in page.texts)


def test_one_reading_more_or_less_does_not_matter():
    """The shortest recording has two."""
    short = recording(readings=(reading(10.0, 0), reading(11.0, 1)))
    assert "100.0" in render(short)


def test_a_server_that_only_writes_has_a_page():
    """Tokens, first and next ones, the cache and how texts ended; no pictures of rows."""
    step = past_run(1, came_ms=0, started_ms=1, ended_ms=5, model="writer", bucket=(8, 57))
    texts = recording(
        readings=(text_reading(10.0, 0), text_reading(11.0, 0.25), text_reading(12.0, 1)),
        devices=(DeviceRuns(device="cpu", pid=1, runs=(step,), missed=0),),
    )
    titles = [picture.title for picture in pictures(texts)]
    assert titles[:3] == ["Requests", "Tokens", "Cache"]
    assert "Lengths and buckets" not in titles
    page = Outline(render(texts))
    cells = [text for text in page.texts if text]
    at = cells.index("writer", cells.index("Text generation"))
    assert cells[at : at + 9] == [
        *("writer", "400.0", "100.0", "100", "198", "15", "50", "20.0", "10.0")
    ]
    assert cells[at + 9 : at + 14] == ["7", "20", "10", "0", "0"]
    assert "8x1x12" in cells
    at = cells.index("made room") + 2
    assert cells[at : at + 6] == ["writer", "2", "3.0", "6", "4", "60"]
    assert "8x57" in cells
