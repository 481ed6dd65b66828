"""The service generates for all of its clients with one engine, and tells each its own."""

import contextlib
import itertools
import json
import math
import queue
import socket
import threading
import time
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as given_any
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models

from builders.any_messages import hostile_json
from builders.null_models import comes_true, sums
from builders.sharing import Runner, Sharing
from fakes.language_model import NAN, POISON, FakeLanguageModel, expected_tokens
from fakes.null_device import NullDevice
from fakes.null_faults import Fault
from ge_backend.engines.preprocess.text import open_tokenizer
from ge_backend.errors import GraphFailed, InvalidRequest, OutOfMemory, ProtocolError
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.protocol.messages import Ok, OpenService, Post
from ge_backend.executor.server import lanes
from ge_backend.executor.server.executor import Executor
from ge_text.engine.engine import Engine
from ge_text.engine.parameters import _READERS, parse_parameters
from ge_text.engine.update import Finish, Update
from ge_text.models.open import OpenedLanguage
from ge_text.protocol import (
    Abort,
    Parts,
    RequestFailed,
    Sample,
    ServiceSpec,
    StatsRequest,
    Submit,
    parts_of,
)
from ge_text.service import answer as text_answer
from ge_text.service import engine as text_engine
from ge_text.service.answer import TextAnswer
from ge_text.service.service import GenerationService
from ge_text.stub import client as generation
from ge_text.stub.client import GenerationClient


class Letters:
    """A tokenizer: a token is a letter."""

    special = MappingProxyType({})

    def encode(self, text, special=True):
        return np.array([ord(letter) - 55 for letter in text], np.int64)

    def decode(self, ids):
        return "".join(chr(token + 55) for token in ids)

    def token_bytes(self, token):
        return bytes([token]) if token > 5 else None

    def stream(self, ids=(), *, special=False):
        return self

    def step(self, token):
        return chr(token + 55)

    def rest(self):
        return ""


class Sink:
    def __init__(self):
        self.deltas, self.ends = [], queue.SimpleQueue()
        self.unwanted = False

    def add(self, deltas, *, last):
        self.deltas.append(list(deltas))
        if last:
            self.ends.put(None)

    def fail(self, error):
        self.ends.put(error)

    def end(self):
        return self.ends.get(timeout=10)

    def text(self, sample=0):
        return "".join(deltas[sample].text for deltas in self.deltas)

    def ids(self, sample=0):
        return [token for deltas in self.deltas for token in deltas[sample].ids]


class Spelling:
    """A guide: the text is these letters."""

    warnings = ()

    def __init__(self, text):
        self.left = list(Letters().encode(text))

    @property
    def complete(self):
        return not self.left

    def fork(self):
        return self

    def advance(self, token):
        assert token == self.left.pop(0)

    def mask(self, drafts=()):
        return np.packbits(np.arange(64) == self.left[0], bitorder="little")


class Rig:
    def __init__(self, monkeypatch, tokenizer=None, executor=None, scratch=0, **settings):
        self.models, self.scratch, self.on_step = [], scratch, None
        monkeypatch.setattr(text_engine, "open_language", self.opened)
        self.tokenizer = tokenizer or Letters()
        self.compile_structure = None
        self.executor = executor or Executor(NullDevice(), linger_s=0.0)
        self.key = spec(**settings).key()
        self.clients = []

    def opened(self, asked):
        self.models.append(FakeLanguageModel(block_size=asked.block_size, on_step=self.on_step))
        self.models[-1].scratch = self.scratch
        return OpenedLanguage(
            model=self.models[-1],
            tokenizer=self.tokenizer,
            sampling={},
            compile_structure=self.compile_structure,
            engine="openvino",
        )

    def connect(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.executor.accept(theirs)
        return ExecutorConnection(ours)

    def client(self, **given):
        self.clients.append(GenerationClient(self.connect, lambda: self.key, **given))
        return self.clients[-1]

    def close(self):
        for client in self.clients:
            client.close()
        self.executor.join()
        self.executor.close()


def spec(**settings):
    given = {
        "max_num_batched_tokens": "64",
        "max_num_seqs": "8",
        "prefill_chunk": "auto",
        "itl_target_ms": "100",
        "block_size": "4",
        "kv_cache_bytes": "0",
        "kv_cache_dtype": "model",
        "stream_interval": "1",
        "scheduling": "fcfs",
        "max_waiting_requests": "100",
        "preemption": "recompute",
        "swap_bytes": "0",
        "prefix_cache": "on",
        "speculation": "off",
        "num_speculative_tokens": "auto",
        "lora_bytes": "1KiB",
    }
    return ServiceSpec(
        folder="/m/1",
        stamp="s",
        precision="origin",
        threads=0,
        priority=2,
        served_as="m",
        settings=given | settings,
    )


@pytest.fixture
def rig(monkeypatch):
    rig = Rig(monkeypatch)
    yield rig
    rig.close()


def ask(client, text="", ids=(), **parameters):
    sink = Sink()
    given = {"max_tokens": 8, "seed": 1, **parameters}
    client.submit(Submit(text=text, ids=tuple(ids), parameters=json.dumps(given)), sink)
    return sink


def close_left(services, leaving):
    """Let a client go without a word, its model's last; return the thread that closes the model."""
    leaving._reopening.stop()
    leaving._stream.close()
    leaving._live.clear()
    assert comes_true(lambda: not any(services.of("generation").holders().values()))
    closing = threading.Thread(target=services.close_idle, kwargs={"now": True})
    closing.start()
    return closing


def expected(prompt, **parameters):
    return expected_tokens(prompt, parse_parameters({"max_tokens": 8, "seed": 1, **parameters}))


def test_a_client_that_asks_and_reads_nothing_is_read_no_further(rig, monkeypatch):
    """What it would be told does not pile up; it has all of it once it reads."""
    monkeypatch.setattr(text_answer, "MAX_UNSAID", 100)
    connection, number, count = rig.connect(), 5, 4000
    opened = OpenService(id=number, kind="generation", key=rig.key)
    connection.ask(opened, Ok)
    (look,) = parts_of(StatsRequest())
    asked = []

    def ask():
        for _ in range(count):
            connection.send(Post(id=number, body=look))
            asked.append(number)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert comes_true(lambda: len(asked) > 300)
    for read in range(count):
        # What lies in the two sockets, in the outbox, and in the hands of its thread.
        assert len(asked) - read < 1500
        assert connection.inbox.receive()[0].id == number
    asking.join(20)
    assert not asking.is_alive()
    connection.close()


def test_two_instances_share_one_engine(rig):
    """Each gets its own text, in tokens and in letters, and the model is loaded once."""
    first, second = rig.client(), rig.client()
    sinks = [ask(client, ids=[9, 10 + n]) for n, client in enumerate((first, second, first))]
    assert [sink.end() for sink in sinks] == [None] * 3
    assert len(rig.models) == 1
    for number, sink in enumerate(sinks):
        assert sink.ids() == expected([9, 10 + number])
        assert sink.text() == Letters().decode(sink.ids())
        assert sink.deltas[-1][0].finish == "length"
        assert sink.deltas[0][0].prompt_tokens == 2
        assert sink.deltas[0][0].found_tokens == 0


class Around(Letters):
    """A tokenizer that puts special tokens around every text."""

    def encode(self, text, special=True):
        ids = super().encode(text)
        return np.array([1, *ids, 2]) if special else ids


@pytest.mark.parametrize(("given", "added"), [({}, 2), ({"add_special_tokens": False}, 0)])
def test_special_tokens_are_added_unless_the_request_has_them_already(monkeypatch, given, added):
    """A chat's template writes its own."""
    rig = Rig(monkeypatch, tokenizer=Around())
    sink = ask(rig.client(), text="ABC", **given)
    assert sink.end() is None
    assert sink.deltas[0][0].prompt_tokens == 3 + added
    rig.close()


def test_text_becomes_tokens_where_it_arrives(rig):
    """A prompt in letters is the prompt in tokens."""
    sink = ask(rig.client(), text="ABC")
    assert sink.end() is None
    assert sink.ids() == expected([10, 11, 12])


def test_a_stop_text_ends_its_sample(rig):
    """It is cut off, no token behind it is told, and the cache is free again."""
    whole = Letters().decode(expected([9, 9], max_tokens=40))
    stop = whole[6:8]
    sink = ask(rig.client(), ids=[9, 9], max_tokens=40, stop=[stop])
    assert sink.end() is None
    assert sink.text() == whole[: whole.index(stop)]
    assert sink.deltas[-1][0].finish == "stop"
    seen = []
    looker = rig.client(on_stats=seen.append)

    def free():
        looker.ask_stats()
        return bool(seen) and seen[-1].levels["blocks_used"] == 0

    assert comes_true(free)
    ends = [sum(one.counts[reason] for one in seen) for reason in ("stop", "cancelled")]
    assert ends == [1, 0]


@pytest.fixture
def pieces(tmp_path):
    """Return a tokenizer like SentencePiece's: what comes first loses its space; 3 ends no text."""
    words = ["<s>", "</s>", "<x>", "<y>", *(f"▁w{number}" for number in range(4, 64))]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}))
    tokenizer.add_special_tokens(words[:4])
    strip = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), strip])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return open_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("prompt", [[9], [0, 9], [9, 2, 2], [*range(5, 60), 1]])
def test_a_text_goes_on_behind_its_prompt(monkeypatch, pieces, prompt):
    """With the space between them, which tokenizers take from what comes first; each sample."""
    rig = Rig(monkeypatch, tokenizer=pieces)
    sink = ask(rig.client(), ids=prompt, n=2)
    assert sink.end() is None
    for sample in range(2):
        written = pieces.decode([*prompt, *sink.ids(sample)])
        assert pieces.decode(prompt) + sink.text(sample) == written
        assert sink.text(sample).startswith(" w")
    stopped = ask(rig.client(), ids=prompt, stop=[sink.text()[:3]])
    assert stopped.end() is None
    assert stopped.text() == ""
    rig.close()


@pytest.mark.parametrize("skipped", [True, False])
def test_special_tokens_are_text_if_the_request_says_so(monkeypatch, tmp_path, skipped):
    """All but the one that ends the text."""
    tokenizer = Tokenizer(models.WordLevel({f"<{number}>": number for number in range(64)}))
    tokenizer.add_special_tokens([f"<{number}>" for number in range(64)])
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    rig = Rig(monkeypatch, tokenizer=open_tokenizer(tmp_path / "tokenizer.json"))
    asked = {"ids": [9], "max_tokens": 3, "skip_special_tokens": skipped}
    sink = ask(rig.client(), **asked)
    assert sink.end() is None
    ids = sink.ids()
    assert sink.text() == ("" if skipped else "".join(f"<{token}>" for token in ids))
    ended = ask(rig.client(), **asked, stop_token_ids=[ids[1]])
    assert ended.end() is None
    assert ended.text() == ("" if skipped else f"<{ids[0]}>")
    rig.close()


@pytest.mark.parametrize("prompt", [[0], [0, 2], [2] * 40])
def test_a_text_behind_special_tokens_alone_is_the_first(monkeypatch, pieces, prompt):
    """They are no text, and so it has no space before it."""
    rig = Rig(monkeypatch, tokenizer=pieces)
    sink = ask(rig.client(), ids=prompt)
    assert sink.end() is None
    assert sink.text() == pieces.decode(sink.ids())
    assert not sink.text().startswith(" ")
    rig.close()


class Halves(Letters):
    """A tokenizer whose token 63 is half a character; it notes what its streams go on behind."""

    def __init__(self):
        self.known = []

    def decode(self, ids):
        return "".join("\ufffd" if token == 63 else chr(token + 55) for token in ids)

    def stream(self, ids=(), *, special=False):
        self.known.append(tuple(ids))
        return self


@pytest.mark.parametrize(
    ("prompt", "known"), [((9, 63, 9, 10, 11, 12), 4), ((9,) * 50, 4), ((9, 10, 63), 0)]
)
def test_a_stream_begins_with_whole_characters(monkeypatch, prompt, known):
    """Else it would tell what is in the prompt."""
    tokenizer = Halves()
    rig = Rig(monkeypatch, tokenizer=tokenizer)
    assert ask(rig.client(), ids=prompt).end() is None
    assert tokenizer.known == [prompt[len(prompt) - known :]]
    rig.close()


def test_tokens_behind_a_stop_text_are_nobodys():
    """An engine that tells of several at once may have drawn them before it heard of the end."""
    out = []
    asked = Submit(number=1, text="", ids=(9,), parameters="")
    parameters = parse_parameters({"stop": ["BC"], "logprobs": 0})
    answer = TextAnswer(
        asked, parameters, SimpleNamespace(put=out.append), Letters(), special={}, prompt=(9,)
    )
    drawn = tuple(map(int, Letters().encode("ABCDE")))
    update = Update(
        id="1",
        sample=0,
        tokens=drawn,
        logprobs=(-1.0,) * 5,
        ranks=(1,) * 5,
        top=(None,) * 5,
        finish=Finish.LENGTH,
    )
    assert answer.take(update)
    (delta,) = out
    assert (delta.text, delta.finish, delta.ids) == ("A", "stop", drawn[:3])
    assert len(delta.logprobs) == 3
    assert delta.cumulative == -3.0


def drawn_one_by_one(count, finish=None, error=None):
    """Yield the updates of one sample that ends with its last token, or behind it by an error."""
    for at, token in enumerate(map(int, Letters().encode("ABCDEFGHIJ"[:count])), 1):
        yield Update(
            id="1",
            sample=0,
            tokens=(token,),
            logprobs=(-1.0,),
            ranks=(1,),
            top=(None,),
            finish=finish if at == count else None,
        )
    if error is not None:
        yield Update(id="1", sample=0, finish=Finish.ERROR, error=error)


@pytest.mark.parametrize(
    ("interval", "known", "texts"),
    [
        (1, (), ["A", "B", "C", "D", "E", "F", "G"]),
        (3, (), ["A", "BCD", "EFG"]),
        (4, (), ["A", "BCDE", "FG"]),
        (4, (9, 10), ["ABCD", "EFG"]),
        (99, (), ["A", "BCDEFG"]),
    ],
)
@pytest.mark.parametrize("error", [None, GraphFailed("no")])
def test_tokens_of_a_stream_come_together_but_for_the_first(interval, known, texts, error):
    """What is left comes at the end, or before the error; one that goes on has had its first."""
    said = []
    samples = (Sample(ids=known),) if known else ()
    asked = Submit(number=1, text="", ids=(9,), parameters="", samples=samples)
    answer = TextAnswer(
        asked,
        parse_parameters({"logprobs": 0}),
        SimpleNamespace(put=lambda *deltas: said.extend(deltas), say=said.append),
        *(Letters(), {}, (9,)),
        interval=interval,
    )
    for update in drawn_one_by_one(7, None if error else Finish.LENGTH, error):
        answer.take(update)
    refused = [RequestFailed(number=1, error="GraphFailed", message="no")] if error else []
    deltas = said[: len(texts)]
    assert said[len(texts) :] == refused
    assert [delta.text for delta in deltas] == texts
    assert [len(delta.ids) for delta in deltas] == [len(delta.logprobs) for delta in deltas]
    assert [len(delta.ids) for delta in deltas] == list(map(len, texts))
    assert [delta.finish for delta in deltas][-1] == ("" if error else "length")


def test_a_stop_text_ends_one_sample_of_several(rig):
    """The others are written to their own ends."""
    whole = Letters().decode(expected([9, 9], max_tokens=12))
    sink = ask(rig.client(), ids=[9, 9], n=2, max_tokens=12, stop=[whole[2:5]])
    assert sink.end() is None
    assert [delta.finish for delta in sink.deltas[-1]] == ["stop", "length"]
    assert (len(sink.ids()), len(sink.ids(1))) == (5, 12)


def test_samples_are_told_apart(rig):
    """Every response has an element for each, and the last one says how each ended."""
    sink = ask(rig.client(), ids=[9, 9], n=3, max_tokens=4)
    assert sink.end() is None
    assert [len(sink.ids(sample)) for sample in range(3)] == [4, 4, 4]
    assert [delta.finish for delta in sink.deltas[-1]] == ["length"] * 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ids": [9], "top_p": 7}, "top_p is 7"),
        ({"ids": [99]}, "prompt has token 99"),
        ({"ids": [9], "max_tokens": 10_000}, "context length is 512 tokens"),
        ({"text": ""}, "the prompt has no token"),
    ],
)
def test_what_cannot_be_served_is_refused_alone(rig, given, message):
    """The sender is told why; a neighbour's text is whole."""
    client = rig.client()
    right, wrong = ask(client, ids=[9, 9]), ask(client, **given)
    assert message in str(wrong.end())
    assert right.end() is None
    assert right.ids() == expected([9, 9])


class Strict(Letters):
    """A tokenizer that knows its own tokens alone, as Hugging Face's raises for others."""

    def decode(self, ids):
        if not all(0 <= token < 64 for token in ids):
            raise OverflowError("out of range integral type conversion attempted")
        return super().decode(ids)


@pytest.mark.parametrize("token", [99, -1, 2**40])
def test_ids_that_are_no_tokens_are_refused_before_they_are_read(monkeypatch, token):
    """The request's own fault, and no error of the model with a traceback."""
    rig = Rig(monkeypatch, tokenizer=Strict())
    error = ask(rig.client(), ids=[9, token]).end()
    rig.close()
    assert isinstance(error, InvalidRequest)
    assert f"prompt has token {token}; the model's tokens are 0 to 63" in str(error)


def test_the_next_executor_takes_on_all_that_the_dead_one_had(monkeypatch):
    """Those that ran there wait here at first: they are more than may wait, and none is refused."""
    rig = Rig(monkeypatch, max_num_seqs="2", max_waiting_requests="2")
    rig.on_step = lambda _: time.sleep(0.02)
    connections, connect = [], rig.connect

    def connecting():
        connections.append(connect())
        return connections[-1]

    rig.connect = connecting
    client = rig.client()
    sinks = []
    for number in range(4):
        sinks.append(ask(client, ids=[9, 10 + number], max_tokens=30, seed=number))
        assert number > 1 or comes_true(sinks[number].ids)
    dead, rig.executor = rig.executor, Executor(NullDevice(), linger_s=0.0)
    connections[0].shut()
    assert [sink.end() for sink in sinks] == [None] * 4
    for number, sink in enumerate(sinks):
        assert sink.ids() == expected([9, 10 + number], max_tokens=30, seed=number)
    rig.close()
    dead.join()
    dead.close()


def test_text_without_a_tokenizer_is_refused(rig):
    """Tokens still work, and have no text."""
    rig.tokenizer = None
    client = rig.client()
    assert "no tokenizer.json" in str(ask(client, text="A").end())
    assert "guided_regex needs a tokenizer" in str(ask(client, ids=[9], guided_regex="a").end())
    assert "stop needs a tokenizer" in str(ask(client, ids=[9], stop=["a"]).end())
    sink = ask(client, ids=[9])
    assert (sink.end(), sink.text(), sink.ids()) == (None, "", expected([9]))


def test_a_structure_is_compiled_while_texts_go_on(rig):
    """A stream of the same client ends meanwhile; the text of the structure is whole, and stopped."""
    compiling, done = threading.Event(), threading.Event()

    def compile_structure(structure):
        compiling.set()
        assert done.wait(10)
        return Spelling(structure.text)

    rig.compile_structure = compile_structure
    client = rig.client()
    running = ask(client, ids=[9, 9])
    held = ask(client, ids=[9], guided_regex="XYZ")
    assert compiling.wait(10)
    assert running.end() is None
    assert running.ids() == expected([9, 9])
    done.set()
    assert held.end() is None
    assert (held.text(), held.deltas[-1][0].finish) == ("XYZ", "stop")


@pytest.mark.parametrize("stop", [{"stop": ["Y"]}, {"stop_token_ids": [34]}])
def test_what_stops_a_text_of_a_structure_need_not_wait_for_its_least_tokens(rig, stop):
    """The form alone says how long a text may be; a stop text cuts it as a stop token does."""
    rig.compile_structure = lambda structure: Spelling("XYZ")
    sink = ask(rig.client(), ids=[9], guided_regex="XYZ", min_tokens=3, **stop)
    assert sink.end() is None
    assert (sink.text(), sink.deltas[-1][0].finish) == ("X", "stop")


def test_a_structure_that_cannot_be_kept_is_refused_alone(rig):
    """Compiling fails for one request; a neighbour does not notice."""

    def refuse(structure):
        raise InvalidRequest(f"{structure.kind.value} cannot be compiled: no")

    rig.compile_structure = refuse
    client = rig.client()
    right, wrong = ask(client, ids=[9, 9]), ask(client, ids=[9], guided_json={"type": "x"})
    assert str(wrong.end()) == "guided_json cannot be compiled: no"
    assert right.end() is None


def test_an_adapter_is_found_beside_the_checkpoint(rig, tmp_path):
    """By its name, under which its text is another one; one that cannot be held is refused alone."""
    place = tmp_path / "adapters" / "pirate"
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 2}')
    sides = {"lora_A": np.zeros((2, 6), np.float32), "lora_B": np.zeros((4, 2), np.float32)}
    held = {f"base_model.model.layer.{name}.weight": side for name, side in sides.items()}
    save_file(held, place / "adapter_model.safetensors")
    rig.key = replace(ServiceSpec.of(rig.key), home=str(tmp_path)).key()
    client = rig.client()
    named = {"lora_name": "pirate"}
    right, plain = ask(client, ids=[9, 9], **named), ask(client, ids=[9, 9])
    wrong = ask(client, ids=[9, 9], lora_name="poet")
    assert "the adapters of this model are pirate" in str(wrong.end())
    assert (right.end(), plain.end()) == (None, None)
    (key,) = rig.models[0].loaded
    asked = parse_parameters({"max_tokens": 8, "seed": 1})
    assert right.ids() == expected_tokens([9, 9], asked, adapter=key)
    assert plain.ids() == expected([9, 9])


def test_a_failing_step_fails_who_caused_it(rig):
    """One breaks the whole step, one has no next token; the third one's text is whole."""
    client = rig.client()
    sinks = [ask(client, ids=[9, token]) for token in (POISON, NAN, 9)]
    ends = [sink.end() for sink in sinks]
    assert [end is None for end in ends] == [False, False, True]
    assert sinks[2].ids() == expected([9, 9])


def failing_once(monkeypatch, name):
    """Let an engine's method fail when it is called for the first time."""
    whole, failures = getattr(Engine, name), [RuntimeError("a defect")]

    def method(self, *given):
        if failures:
            raise failures.pop()
        return whole(self, *given)

    monkeypatch.setattr(Engine, name, method)


def test_an_unforeseen_failure_of_a_step_ends_its_texts_alone(rig, monkeypatch):
    """Those that come later are served."""
    failing_once(monkeypatch, "step")
    client = rig.client()
    assert "a defect" in str(ask(client, ids=[9, 9]).end())
    assert ask(client, ids=[9, 9]).end() is None


def test_an_engine_that_cannot_end_its_texts_ends_the_executor(rig, monkeypatch):
    """Nobody waits for a step that never comes: another executor goes on with the texts."""
    failing_once(monkeypatch, "step")
    failing_once(monkeypatch, "abort")
    faults = queue.SimpleQueue()
    rig.executor.on_fault = lambda: faults.put(True)
    sink = ask(rig.client(), ids=[9, 9])
    assert faults.get(timeout=20)
    assert sink.end() is None  # this one goes on, because a test's executor does not end


def test_who_leaves_takes_its_requests_along(rig):
    """Nothing of a client that is gone runs on."""
    staying, seen = rig.client(), []
    staying.on_stats = seen.append
    leaving = rig.client()
    ask(leaving, ids=[9], max_tokens=400)
    leaving._reopening.stop()
    leaving._stream.close()

    def idle():
        staying.ask_stats()
        return bool(seen) and seen[-1].levels["running"] == 0 and seen[-1].levels["waiting"] == 0

    assert comes_true(idle)
    leaving._live.clear()


def test_a_model_that_is_closed_between_two_steps_begins_none(monkeypatch):
    """Its place in the pool and its memory are gone then; the lanes are other models', too."""
    rig = Rig(monkeypatch, executor=Executor(NullDevice(), linger_s=60.0))
    asked, stepping, left, between, go = (threading.Event() for _ in range(5))

    def on_step(*_):
        if asked.is_set():
            stepping.set()
            left.wait(10)

    rig.on_step = on_step
    kick = GenerationService._schedule_step

    def late(self):
        if threading.current_thread().name.startswith("lane") and left.is_set():
            between.set()
            go.wait(10)
        kick(self)

    monkeypatch.setattr(GenerationService, "_schedule_step", late)
    leaving = rig.client()
    asked.set()
    ask(leaving, ids=[9], max_tokens=400)
    assert stepping.wait(10)
    assert len(rig.executor.lanes) == 1
    closing = close_left(rig.executor.services, leaving)
    left.set()
    assert between.wait(10)
    time.sleep(0.05)
    assert closing.is_alive()
    go.set()
    closing.join(10)
    assert comes_true(lambda: len(rig.executor.lanes) == 0)
    assert all(thread.is_alive() for thread in rig.executor.lanes._threads)
    assert ask(rig.client(), ids=[9]).end() is None
    rig.close()


def test_texts_whose_steps_find_no_place_fail(monkeypatch, tmp_path):
    """They are told so, and their clients are not kept waiting."""
    shared = Sharing(tmp_path, pool_bytes=1000, linger_s=0)
    rig = Rig(monkeypatch, executor=shared.executor, scratch=600)
    client = rig.client()
    (service,) = rig.executor.services.of("generation").values()
    rig.executor.pool.remove(service._holder)
    assert isinstance(ask(client, ids=[9]).end(), ProtocolError)
    rig.executor.pool.workspace(service._holder).place(600)
    assert ask(client, ids=[9]).end() is None
    rig.close()


def test_figures_are_told_once(rig):
    """What one instance has been told of, another one is not told again."""
    seen = []
    first, second = rig.client(on_stats=seen.append), rig.client(on_stats=seen.append)
    assert ask(first, ids=[9]).end() is None
    for count, client in enumerate((first, second, first), start=1):
        client.ask_stats()
        assert comes_true(lambda count=count: len(seen) == count)
    assert sum(figures.counts["generated_tokens"] for figures in seen) == 8
    assert sum(sum(figures.histograms["first_token"].counts) for figures in seen) == 1
    assert {figures.engine for figures in seen} == {"openvino"}


def test_buckets_are_made_ready_before_the_first_request(monkeypatch):
    """With sizes given every step has one of their shapes."""
    settings = {"buckets.batch": "2,8", "buckets.query": "8,64", "buckets.context": "16,128"}
    rig = Rig(monkeypatch, **settings)
    client = rig.client()
    warm = len(rig.models[0].steps)
    assert warm
    assert ask(client, ids=[9] * 20).end() is None
    shapes = {
        (group.rows, group.query, group.tables.shape[1])
        for batch in rig.models[0].steps[warm:]
        for group in batch.groups
    }
    assert shapes <= {(b, 1, c) for b in (2, 8) for c in (16, 128)} | {
        (1, q, c) for q in (8, 64) for c in (16, 128)
    }
    seen = []
    looker = rig.client(on_stats=seen.append)
    looker.ask_stats()
    assert comes_true(lambda: bool(seen))
    assert sum(seen[0].buckets.values()) == 8
    assert {tuple(map(int, name.split("x"))) for name in seen[0].buckets} == shapes
    rig.close()


def test_every_step_is_in_the_timeline_and_in_the_sum_of_what_is_to_be_done(rig):
    """By the sequences and tokens that it computed; with the model's name, as any run."""
    assert ask(rig.client(), ids=[9, 10, 11]).end() is None
    assert comes_true(lambda: len(rig.executor.timeline.history(1, 0).runs) == 8)
    runs = rig.executor.timeline.history(1, 0).runs
    assert [run.bucket for run in runs] == [(1, 3)] + [(1, 1)] * 7
    assert {(run.model, run.real_rows, run.error) for run in runs} == {("m", 1, "")}
    assert comes_true(lambda: rig.executor.outstanding._total_ns == 0)
    made = len(rig.models[0].steps)
    time.sleep(0.05)  # nothing ticks: without requests there are no steps
    assert len(rig.models[0].steps) == made
    assert len(rig.executor.timeline.history(1, 0).runs) == len(runs)


def test_log_probabilities_have_the_form_of_the_vllm_backend(rig):
    """A list with an object per token: id → log-probability, rank and text."""
    sink = ask(rig.client(), ids=[9, 9], logprobs=2, max_tokens=3)
    assert sink.end() is None
    tokens = [json.loads(entry) for deltas in sink.deltas for entry in deltas[0].logprobs]
    assert [str(token) in entry for token, entry in zip(sink.ids(), tokens, strict=True)] == [
        True
    ] * 3
    assert set(next(iter(tokens[0].values()))) == {"logprob", "rank", "decoded_token"}


def test_log_probabilities_name_every_token(monkeypatch, pieces, tmp_path):
    """Special ones too, which are no text, and others with the space that begins them."""
    rig = Rig(monkeypatch, tokenizer=pieces)
    rig.key = replace(spec(), folder=str(tmp_path)).key()
    sink = ask(rig.client(), ids=[9], logprobs=20, max_tokens=8)
    assert sink.end() is None
    names = ["<s>", "</s>", "<x>", "<y>", *(f" w{number}" for number in range(4, 64))]
    told = {
        int(token): entry["decoded_token"]
        for deltas in sink.deltas
        for entries in deltas[0].logprobs
        for token, entry in json.loads(entries).items()
    }
    assert told == {token: names[token] for token in told}
    assert {*range(4), *sink.ids()} <= set(told)
    spoken = [names[token] for token in sink.ids() if token > 3]
    assert sink.text() == "".join(spoken) != ""
    rig.close()


@pytest.mark.parametrize(
    ("text", "told"), [("\ufffd", "\ufffd"), ("▁", " "), ("▁▁", "  "), ("a", "a")]
)
def test_the_text_of_a_token_is_what_it_adds_to_another(monkeypatch, tmp_path, text, told):
    """A space alone is one, and half a character is not more than that behind itself."""

    class One(Letters):
        def decode(self, ids):
            return (text * len(ids)).replace("▁", " ").removeprefix(" ")

    rig = Rig(monkeypatch, tokenizer=One())
    sink = ask(rig.client(), ids=[9], logprobs=0, max_tokens=1)
    assert sink.end() is None
    ((listed,),) = (deltas[0].logprobs for deltas in sink.deltas)
    entries = json.loads(listed)
    assert [entry["decoded_token"] for entry in entries.values()] == [told]
    rig.close()


def test_a_part_of_a_letter_has_its_bytes(monkeypatch, tmp_path):
    """Where they are known; a token that is a text tells them itself."""

    class Halves(Letters):
        def decode(self, ids):
            return "\ufffd" * len(ids) if ids[0] > 3 else super().decode(ids)

    rig = Rig(monkeypatch, tokenizer=Halves())
    sink = ask(rig.client(), ids=[9], logprobs=3, max_tokens=3)
    assert sink.end() is None
    tokens = [json.loads(entry) for deltas in sink.deltas for entry in deltas[0].logprobs]
    entries = {int(token): entry for entries in tokens for token, entry in entries.items()}
    assert entries
    for token, entry in entries.items():
        assert entry.get("bytes") == ([token] if token > 5 else None)
    rig.close()


def test_the_drawn_token_has_its_rank_though_it_is_not_among_the_best(rig):
    """Clients of Triton's vLLM backend read a number."""
    sink = ask(rig.client(), ids=[9, 9], logprobs=0, max_tokens=3)
    assert sink.end() is None
    tokens = [json.loads(entry) for deltas in sink.deltas for entry in deltas[0].logprobs]
    assert [entry["rank"] for entries in tokens for entry in entries.values()] == [3] * 3


def test_the_sum_of_log_probabilities_needs_no_wish_for_each(rig):
    """Who wants it alone has it, and is told nothing else."""
    sink = Sink()
    parameters = json.dumps({"max_tokens": 8, "seed": 1})
    rig.client().submit(Submit(text="", ids=(9, 9), parameters=parameters, cumulative=True), sink)
    assert sink.end() is None
    rows = [row.sampling for batch in rig.models[0].steps for row in batch.rows]
    assert {one.logprobs for one in rows if one.seed == 1} == {0}
    assert sink.deltas[-1][0].cumulative == -4.0
    assert {deltas[0].logprobs for deltas in sink.deltas} == {()}


def test_an_unknown_log_probability_is_not_one_of_zero(rig):
    """0.0 would say that the text was certain."""
    client = rig.client()
    rig.models[0].logprob = math.nan
    sink = ask(client, ids=[9, 9])
    assert sink.end() is None
    assert math.isnan(sink.deltas[-1][0].cumulative)


def test_log_probabilities_are_added_up_across_executors(rig):
    """What came before an executor died counts; the tokens are the same ones."""
    whole = ask(rig.client(), ids=[9, 9], logprobs=1)
    assert whole.end() is None
    submit = Submit(
        number=1,
        text="",
        ids=(9, 9),
        parameters=json.dumps({"max_tokens": 8, "seed": 1, "logprobs": 1}),
        seed=1,
        samples=(Sample(ids=tuple(whole.ids()[:3]), cumulative=-1.5),),
    )
    client, sink = rig.client(), Sink()
    client._live[1] = generation._Live(submit, sink)
    with client._lock:
        client._send_waiting()
    assert sink.end() is None
    assert sink.ids() == whole.ids()[3:]
    assert sink.deltas[-1][0].cumulative == whole.deltas[-1][0].cumulative == -4.0


def test_steps_take_turns_with_runs_that_need_the_same_bytes(monkeypatch, tmp_path):
    """An encoder runs between two steps and never beside one; both get all that they asked for."""
    shared = Sharing(tmp_path, pool_bytes=1000, linger_s=0)
    encoder = shared.load("encoder", workspace_bytes=600, cost_ms={"*": 1})
    rig = Rig(monkeypatch, executor=shared.executor, scratch=600)
    beside, defects, asked, runners = [], [], threading.Event(), []

    def another_waits():
        return runners and (len(shared.executor.lanes) > 1 or len(runners[0].outcomes) == 30)

    def look(batch):
        beside.append(shared.device.counts.running)
        defects.extend(shared.defects())
        assert not asked.is_set() or comes_true(another_waits)

    rig.on_step = look
    client = rig.client()
    asked.set()
    sink = ask(client, ids=[9, 9], max_tokens=100)
    runner = Runner(encoder, range(30))
    runners.append(runner)
    assert sums(runner.join()) == [3.0 * value for value in range(30)]
    assert sink.end() is None
    assert sink.ids() == expected([9, 9], max_tokens=100)
    assert set(beside) == {0}
    assert defects == []
    runs = []
    while more := shared.executor.timeline.history(1, len(runs)).runs:
        runs += more
    order = [run.model == "m" for run in runs]
    turns = sum(before != after for before, after in itertools.pairwise(order))
    # One after the other is one turn; how many more depends on how long a step takes, on a busy
    # machine as long as several runs.
    assert turns > 2, order
    assert list(shared.figures().holders.values()) == [600, 600]
    client.close()
    rig.clients.clear()
    shared.close()


def test_a_model_that_nobody_uses_goes_though_a_step_of_it_waits_for_bytes(monkeypatch, tmp_path):
    """Who closes it accepts connections, or loads another model: that waits for no neighbour's run."""
    shared, gate = Sharing(tmp_path, pool_bytes=1000), tmp_path / "gate"
    encoder = shared.load("encoder", workspace_bytes=600)
    rig = Rig(monkeypatch, executor=shared.executor, scratch=600)
    leaving = rig.client()
    shared.device.inject(Fault(on="run", do="hold", file=str(gate)))
    runner = Runner(encoder, [1])
    assert comes_true(gate.exists)
    ask(leaving, ids=[9])
    assert comes_true(lambda: len(shared.executor.lanes) == 2)
    closing = close_left(shared.executor.services, leaving)
    closing.join(10)
    went = not closing.is_alive()
    gate.unlink()
    assert sums(runner.join()) == [3]
    assert went
    closing.join()
    assert list(shared.figures().holders.values()) == [600]
    shared.close()


def test_a_step_that_is_larger_than_the_pool_is_refused_at_load(monkeypatch, tmp_path):
    """With both numbers; nobody keeps a place."""
    shared = Sharing(tmp_path, pool_bytes=500, linger_s=0)
    rig = Rig(monkeypatch, executor=shared.executor, scratch=600)
    with pytest.raises(OutOfMemory, match=r"m #\d+ needs 600 B of workspace, 100 bytes more"):
        rig.client()
    assert shared.figures().holders == {}
    shared.close()


@pytest.mark.parametrize("at", ["open", "open_cache", "prepare", "scratch_bytes"])
def test_models_that_are_there_are_closed_where_making_them_ready_fails(monkeypatch, tmp_path, at):
    """Their weights are on the device, and nobody else would free them."""
    shared = Sharing(tmp_path, pool_bytes=5000, linger_s=0)
    drafted = {"speculation": "model", "speculative_model": str(tmp_path)}
    rig = Rig(monkeypatch, executor=shared.executor, scratch=600, **drafted)
    closed = []

    def fail(*given):
        raise OutOfMemory("no room")

    def opened(asked):
        if at == "open" and rig.models:
            fail()
        made = rig.opened(asked)
        made.model.close = lambda: closed.append(made.model)
        if at != "open":
            setattr(made.model, at, fail)
        return made

    monkeypatch.setattr(text_engine, "open_language", opened)
    with pytest.raises(OutOfMemory, match="no room"):
        rig.client()
    assert len(rig.models) == (1 if at == "open" else 2)
    assert closed == rig.models[::-1]
    shared.close()


DEEP = "[" * 100_000
JUNK = (
    *(None, True, 0, -1, 3, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, -0.5, 1.5),
    *("", "5", "true", "A", "\ud800", "9" * 5000, DEEP, '["A"]', '["\\ud800"]', "nan", "\0"),
    *([], ["A", ""], ["\ud800"], ["A", 3], [3, -1], [2**40], [None], [[]]),
    *({}, {"3": 1}, {"3": -1e308}, {"-1": 5}, {"99999": 5}, {"x": 1}, {"3": None}, {"3": True}),
)


@pytest.mark.parametrize("name", [*_READERS, "unknown"])
def test_no_parameter_of_whatever_value_is_an_accident(rig, caplog, name):
    """A request is served or refused for what it asks; its neighbour's text is as ever."""
    rig.compile_structure = lambda structure: Spelling("A")
    client, prompt = rig.client(), [9, 10, 11, 12, 13, 14, 15, 16, 17]
    neighbour = ask(client, ids=prompt)
    sinks = {repr(value): ask(client, ids=prompt, **{name: value}) for value in JUNK}
    errors = {value: error for value, sink in sinks.items() if (error := sink.end())}
    assert {type(error) for error in errors.values()} == {InvalidRequest}
    assert neighbour.end() is None
    assert neighbour.ids() == expected(prompt)
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("parameters", ["[]", "null", "{", "[" * 100_000, '{"n": 1' * 5000, ""])
def test_parameters_that_are_no_object_are_refused(rig, parameters):
    """However deep they are."""
    sink = Sink()
    rig.client().submit(Submit(text="", ids=(9,), parameters=parameters), sink)
    assert isinstance(sink.end(), InvalidRequest)


def test_hostile_messages_to_the_service_hurt_nobody(rig, monkeypatch):
    """Numbers of any size, parts without an end, requests twice: refused without a traceback."""
    client, honest, tracebacks = rig.client(), expected([9, 10]), []
    monkeypatch.setattr(lanes.log, "exception", lambda *text: tracebacks.append(text))
    assert ask(client, ids=[9, 10]).end() is None
    ((service,),) = (rig.executor.services.of("generation").values(),)
    packed = hostile_json((Submit, Abort, StatsRequest), [""]).map(json.dumps)
    bodies = st.builds(
        lambda head, text: head + text.encode(), st.sampled_from([b".", b"+", b"", b"x"]), packed
    )

    class Stranger:
        opened = OpenService(id=1, kind="generation", key=rig.key)

        def post(self, body):
            Parts().take(body)

    @settings(
        max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given_any(st.lists(bodies, max_size=6))
    def attacked(chosen):
        stranger = Stranger()
        member = service.join(stranger)
        for body in chosen:
            with contextlib.suppress(ProtocolError):
                member.receive(Post(id=1, body=body))
        member.leave()
        neighbour = ask(client, ids=[9, 10])
        assert neighbour.end() is None
        assert neighbour.ids() == honest

    attacked()
    assert tracebacks == []
    assert comes_true(lambda: service._engine.figures().blocks_used == 0)
