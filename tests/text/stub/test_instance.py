"""What becomes of a request's responses; the rest of it is tested on the real server."""

import os
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from builders.host_config import instance_of
from builders.null_models import comes_true
from ge_backend.device.health import Health
from ge_backend.errors import GraphFailed, Status
from ge_backend.executor.process.reloads import note_reload
from ge_backend.executor.protocol.outstanding import PoolSample
from ge_backend.host import room
from ge_backend.host.room import Room
from ge_backend.metrics import Recorder
from ge_text.protocol import Delta

SHOWN = SimpleNamespace(
    ns=0,
    memory_bytes=0,
    health=Health(),
    pool=PoolSample(size_bytes=1, placed_bytes=1),
    beat_ns=2**62,  # it lives
)
LAST = Delta(number=1, sample=0, text="x", ids=(5,), finish="stop")


class Sender:
    """Notes what is asked or sent while something is sent, or when all has been."""

    def __init__(self, final):
        self.final, self.sending, self.over = final, False, False
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.asked, self.wrong = 0, 0

    def send(self, response, flags=0):
        self.wrong += self.sending or self.over
        self.sending, self.last = True, response
        self.begun.set()
        assert self.go_on.wait(20)
        self.over, self.sending = flags == self.final, False

    def is_cancelled(self):
        self.asked += 1
        self.wrong += self.sending or self.over
        return True


def ask(pb_utils, *, stream=True, heartbeat=False):
    asked = pb_utils.InferenceRequest(
        [
            pb_utils.Tensor("text_input", np.array([b"a"], object)),
            pb_utils.Tensor("stream", np.array([stream])),
            pb_utils.Tensor("heartbeat", np.array([heartbeat])),
        ],
        ("text_output",),
    )
    asked.parameters = lambda: "{}"
    return asked


def answer(pb_utils, sender, **given):
    from ge_text.stub.instance import _Answer
    from ge_text.stub.requests import read_text_request

    return _Answer(read_text_request(ask(pb_utils, **given)), sender, Recorder(), Room())


def ends(made):
    """Yield the two ways in which an answer ends."""
    return (lambda: made.add([LAST], last=True)), (lambda: made.fail(GraphFailed("no")))


def test_nobody_asks_for_a_client_while_its_answer_ends_or_after(pb_utils):
    """The host frees what such a question reads, and the whole server crashes."""
    for way in range(2):
        sender = Sender(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        made = answer(pb_utils, sender)
        assert made.unwanted
        ending = threading.Thread(target=ends(made)[way])
        ending.start()
        assert sender.begun.wait(20)
        assert not made.unwanted
        sender.go_on.set()
        ending.join(20)
        assert not made.unwanted
        assert (sender.asked, sender.wrong, sender.over) == (1, 0, True)


def test_a_client_is_asked_for_between_two_responses(pb_utils):
    """Whoever has got a part may give up the rest."""
    sender = Sender(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    sender.go_on.set()
    made = answer(pb_utils, sender)
    made.add([Delta(number=1, sample=0, text="x", ids=(5,))], last=False)
    assert made.unwanted
    assert (sender.asked, sender.wrong) == (1, 0)


def test_a_heart_beats_where_nothing_else_is_sent(pb_utils, monkeypatch):
    """For a client that wants that, each second without a response, until the answer ends."""
    sent, now_s = [], [7.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    sender = SimpleNamespace(
        send=lambda response, flags=0: sent.append(len(response.output_tensors())),
        is_cancelled=lambda: False,
    )
    plain, made = answer(pb_utils, sender), answer(pb_utils, sender, heartbeat=True)

    def look(after_s):
        now_s[0] += after_s
        assert [each.unwanted for each in (plain, made)] == [False, False]
        return sent

    assert look(0.9) == []
    assert look(0.1) == [0]
    assert look(0.9) == [0]
    made.add([replace(LAST, finish="")], last=False)
    assert look(0.9) == [0, 1]
    assert look(0.1) == [0, 1, 0]
    made.add([LAST], last=True)
    assert look(2.0) == [0, 1, 0, 1]


def test_nothing_is_sent_while_an_answer_ends_or_after(pb_utils):
    """Text may be on its way when a request is ended for its client, and the other way round."""
    part = [Delta(number=1, sample=0, text="x", ids=(5,))]
    for end in range(2):
        sender = Sender(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        made = answer(pb_utils, sender)
        both = [ends(made)[end], lambda made=made: made.add(part, last=False)]
        for work in (both, both[::-1]):
            threads = [threading.Thread(target=one) for one in work]
            for thread in threads:
                thread.start()
                assert sender.begun.wait(20)
            sender.go_on.set()
            for thread in threads:
                thread.join(20)
        made.fail(GraphFailed("again"))
        assert (sender.wrong, sender.over) == (0, True)


def test_a_long_answer_is_put_together_once(pb_utils):
    """One thread hands out all of a stub's texts, so 20,000 tokens in one answer take no minutes."""
    sender = Sender(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    sender.go_on.set()
    made = answer(pb_utils, sender, stream=False)
    part = replace(LAST, finish="", logprobs=("1",) * 501)
    began_s = time.thread_time()
    for _ in range(20_000):
        made.add([part], last=False)
    assert not sender.begun.is_set()
    made.add([LAST], last=True)
    assert sender.over
    assert time.thread_time() - began_s < 5


def test_what_is_left_is_asked_for_once_for_the_texts_of_a_step(pb_utils, monkeypatch):
    """Their responses go out at once, and a question to the system costs as much as the rest."""
    from ge_text.stub.instance import Generation

    answers, asked, real = [], [], os.statvfs
    client = SimpleNamespace(submit=lambda prompt, answer: answers.append(answer))
    served = Generation(client, Recorder(), ())
    served.execute([ask(pb_utils) for _ in range(4)])
    monkeypatch.setattr(room, "FRESH_NS", 60_000_000_000)
    monkeypatch.setattr(os, "statvfs", lambda path: asked.append(path) or real(path))
    for answer in answers:
        answer.add([LAST], last=True)
    assert len(asked) == 1


def test_a_text_without_room_fails_and_is_written_no_further(pb_utils, shared):
    """The host would close its sender before it looks for room: the client would wait for ever."""
    sender = Sender(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    sender.go_on.set()
    made = answer(pb_utils, sender)
    shared(left=0, free=1 << 20)
    made.add([replace(LAST, finish="")], last=False)
    shared(left=0, free=0)
    made.add([replace(LAST, finish="")], last=False)
    assert made.unwanted
    assert sender.over
    assert "left for it" in sender.last.error().message()
    made.fail(GraphFailed("withdrawn"))
    assert (sender.asked, sender.wrong) == (0, 0)
    refused = [v for (n, _), v in made._recorder.drain().items() if n.endswith("failures_total")]
    assert refused == [1]


def test_requests_are_counted_once_they_are_read(pb_utils):
    """As for other models: one that is refused as it is read is a failure only."""
    from ge_text.stub.instance import Generation

    submitted = []
    client = SimpleNamespace(submit=lambda prompt, answer: submitted.append(prompt))
    recorder, nothing = Recorder(), pb_utils.InferenceRequest()
    Generation(client, recorder, ()).execute([ask(pb_utils), nothing])
    counts = recorder.drain()
    assert len(submitted) == counts["ge_requests_total", ()] == 1
    refused = [value for (name, _), value in counts.items() if name == "ge_request_failures_total"]
    assert refused == [1]


def test_what_alerts_watch_is_published_from_the_first_on(pb_utils, monkeypatch, tmp_path):
    """Counters begin with zero, or their first event would not be seen; healings are told."""
    from ge_text.stub import instance as generation

    def opened(config, recorder, *, on_restart):
        nothing = {"ask_stats": lambda: None, "close": lambda: None}
        return SimpleNamespace(ready=True, outstanding=SHOWN, **nothing)

    note_reload(tmp_path, "m")
    monkeypatch.setenv("GE_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(generation, "open_generation", opened)
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path))
    config = {"name": "m", "parameters": {"device": {"string_value": "cpu"}}}
    generation.Generation.open(instance_of(config)).close()
    published = {
        (
            name,
            *(series.labels.get(label) for label in ("device", "status", "reason")),
        ): series.value
        for name, family in pb_utils.MetricFamily.families.items()
        for series in family.series
    }
    assert published["ge_model_heals", "cpu", None, None] == 1
    assert "ge_workspace_pool_bytes" in {name for name, *_ in published}
    assert published["ge_requests_total", "cpu", None, None] == 0
    assert published["ge_executor_restarts_total", "cpu", None, None] == 0
    assert published["ge_text_failed_steps_total", "cpu", None, None] == 0
    assert published["ge_text_finished_total", "cpu", None, "error"] == 0
    for status in Status:
        assert published["ge_request_failures_total", "cpu", status.value, None] == 0


def test_no_text_waits_for_a_device_that_is_lost(pb_utils, monkeypatch, tmp_path):
    """All have failed, and an autoscaler looks at how many wait; nobody is there to say so."""
    from ge_text.stub import instance as generation

    client = SimpleNamespace(ready=True, outstanding=SHOWN, close=lambda: None)

    def opened(config, recorder, *, on_restart):
        client.ask_stats = lambda: recorder.set("ge_text_waiting", 3.0)
        return client

    def waiting():
        series = pb_utils.MetricFamily.families.get("ge_text_waiting")
        return series.series[0].value if series else None

    monkeypatch.setattr(generation, "open_generation", opened)
    monkeypatch.setattr(pb_utils, "get_model_dir", lambda: str(tmp_path))
    served = generation.Generation.open(instance_of({"name": "m"}))
    assert comes_true(lambda: waiting() == 3)
    client.ask_stats, client.ready = lambda: None, False
    assert comes_true(lambda: waiting() == 0)
    served.close()
