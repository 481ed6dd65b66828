"""Texts become what the tokenizers library makes of them, and a bad text is refused alone."""

import threading
import time

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from builders.text import VOCABULARY, build_tokenizer, write_tokenizer
from ge_backend.device.base import ROW_ERRORS, GraphSource
from ge_backend.engines.kinds.cpu import CpuDevice
from ge_backend.engines.preprocess.tokenizer import TokenizerOptions, read_options
from ge_backend.errors import ConfigError, GraphFailed, ModelError

CLS, SEP, UNK = (VOCABULARY[token] for token in ("[CLS]", "[SEP]", "[UNK]"))
tokenizers = pytest.importorskip("tokenizers")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from builders.families import FAMILIES, family_tokenizer  # noqa: E402
from ge_backend.engines.preprocess.tokenizer import cut_pair, shares  # noqa: E402

TEXTS = st.lists(st.sampled_from(["the", "cat", "sat", "x"]), max_size=20).map(" ".join)


@pytest.fixture
def load(tmp_path):
    """Write a tokenizer and load it as the device does; keywords with a dot's place are options."""

    def loaded(options=None, threads=0, **tokenizer):
        path = tmp_path / "tokenizer.json"
        write_tokenizer(path, **tokenizer)
        pairs = tuple((f"tokenizer.{key}", text) for key, text in (options or {}).items())
        return CpuDevice().load(GraphSource.of(path, options=pairs, threads=threads))

    return loaded


def texts(*rows):
    return {"text": np.array([[row] for row in rows], object)}


def run(graph, *rows):
    return graph.run(texts(*rows), {}, exclusive=False)


def test_the_signature_says_what_goes_in_and_out(load):
    """The mask tells each row's real length, and the file how long it may be."""
    signature = load().signature
    assert [spec.describe() for spec in signature.inputs] == ["BYTES [batch, 1]"]
    assert {spec.name: spec.describe() for spec in signature.outputs} == dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids"), "INT64 [batch, sequence]"
    )
    assert signature.lengths == {"sequence": "attention_mask"}
    assert signature.axis_limits == {"sequence": 8}


@pytest.mark.parametrize("threads", [0, 1])
def test_tokens_are_those_of_the_library(load, threads):
    """Every row's real part is what the library makes of its text alone."""
    rows = ["The cat sat on a mat", "cats", "", "a dog", "é"]
    got = run(load(threads=threads), *(row.encode() for row in rows))
    assert list(got) == ["input_ids", "attention_mask", "token_type_ids"]
    expected = [build_tokenizer().encode(row) for row in rows]
    lengths = got["attention_mask"].sum(axis=1)
    assert lengths.tolist() == [len(each.ids) for each in expected]
    for row, each in enumerate(expected):
        assert got["input_ids"][row, : lengths[row]].tolist() == each.ids
        assert got["token_type_ids"][row, : lengths[row]].tolist() == each.type_ids
        assert got["attention_mask"][row].tolist() == sorted(got["attention_mask"][row])[::-1]
    assert got["input_ids"].shape == (5, 8)
    assert got["input_ids"][2, :2].tolist() == [CLS, SEP]


@pytest.mark.parametrize("data_type", ["INT64", "INT32"])
def test_the_type_of_the_outputs_can_be_chosen(load, data_type):
    """Some encoders take INT32."""
    graph = load({"data_type": data_type})
    assert {spec.dtype.name for spec in graph.signature.outputs} == {data_type}
    assert {str(array.dtype) for array in run(graph, b"cat").values()} == {data_type.lower()}


def test_a_text_is_cut_where_the_file_says(load):
    """The special tokens stay."""
    got = run(load(max_length=4), b"the cat sat on a mat")
    assert got["input_ids"].tolist() == [[CLS, VOCABULARY["the"], VOCABULARY["cat"], SEP]]


@pytest.mark.parametrize("strategy", ["only_first", "only_second"])
@pytest.mark.parametrize("paired", ["false", "true"])
def test_a_long_text_is_cut_whatever_the_file_cuts(tmp_path, strategy, paired):
    """`save_pretrained` keeps how texts were cut last, which fails for those of another kind."""
    tokenizer = build_tokenizer()
    tokenizer.enable_truncation(8, strategy=strategy)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    source = GraphSource.of(tmp_path / "tokenizer.json", options=(("tokenizer.pairs", paired),))
    given = pairs((b"a " * 20, b"cat"), (b"cat", b"a " * 20))
    if paired == "false":
        del given["text_pair"]
    got = CpuDevice().load(source).run(given, {}, exclusive=False)
    assert got["input_ids"].shape[1] == 8
    assert got["input_ids"][:, 0].tolist() == [CLS, CLS]
    assert ROW_ERRORS not in got


@pytest.mark.parametrize("max_length", [0, 4, 20])
def test_a_parameter_goes_before_the_file(load, max_length):
    """Files often say what the training used, not what the model takes."""
    graph = load({"max_length": "6"}, max_length=max_length)
    assert graph.signature.axis_limits == {"sequence": 6}
    assert run(graph, b"a " * 20)["input_ids"].shape == (1, 6)


def test_without_any_limit_a_text_stays_whole(load):
    """Neither file nor parameter cuts it."""
    graph = load(max_length=0)
    assert graph.signature.axis_limits == {}
    assert run(graph, b"a " * 1000)["input_ids"].shape == (1, 1002)


def test_special_tokens_can_be_left_out(load):
    """A text without any tokens is a row of length 0 then."""
    got = run(load({"add_special_tokens": "false"}), b"cat", b"")
    assert got["input_ids"].tolist() == [[VOCABULARY["cat"]], [0]]
    assert got["attention_mask"].tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("options", "middle"),
    [
        ({}, [UNK, UNK, UNK]),
        ({"strip": "true"}, [UNK]),
        ({"lower_case": "true"}, [UNK, VOCABULARY["cat"], UNK]),
        ({"strip": "true", "lower_case": "true"}, [VOCABULARY["cat"]]),
    ],
)
def test_a_text_is_prepared_as_sentence_transformers_does(load, options, middle):
    """Where capitals and white space count for the tokenizer; nothing is done unless asked for."""
    got = run(load(options, exact=True), b" Cat ")
    assert got["input_ids"].tolist() == [[CLS, *middle, SEP]]


def test_a_fixed_length_of_the_file_is_not_taken(load):
    """Lengths stay unequal, on the right, whatever the file pads to; its fill is used."""
    pad = {"length": 32, "pad_id": VOCABULARY["mat"], "pad_type_id": 1, "direction": "left"}
    graph = load(pad={**pad, "pad_token": "mat"})
    got = run(graph, b"cat", b"a cat")
    assert got["input_ids"].shape == (2, 4)
    assert got["input_ids"][0, 3] == VOCABULARY["mat"]
    assert got["token_type_ids"][0].tolist() == [0, 0, 0, 1]
    fills = {spec.name: spec.fill for spec in graph.signature.outputs}
    assert fills == {"input_ids": VOCABULARY["mat"], "attention_mask": 0, "token_type_ids": 1}


def test_the_fill_is_the_padding_token_where_the_file_sets_none_up(load):
    """Some encoders tell padding by its id."""
    assert load().signature.output("input_ids").fill == VOCABULARY["[PAD]"]


def test_text_that_is_not_utf8_is_refused_alone(load):
    """Its row says why; the others are what they are without it."""
    graph = load()
    got = run(graph, b"cat", b"\xff\xfecat", "é".encode(), "é".encode("latin-1"))
    reasons = [reason.decode() for reason in got.pop(ROW_ERRORS)]
    assert [bool(reason) for reason in reasons] == [False, True, False, True]
    assert "not UTF-8" in reasons[1]
    assert "0xff in position 0" in reasons[1]
    alone = run(graph, b"cat", "é".encode())
    for name, array in alone.items():
        assert got[name][[0, 2]].tolist() == array.tolist()
    assert alone["input_ids"][1, 1] == VOCABULARY["é"]
    assert ROW_ERRORS not in alone


def test_a_text_that_is_too_long_can_be_refused(load):
    """`overflow: error`: whoever must not lose the end of a text is told."""
    got = run(load({"overflow": "error"}, max_length=4), b"a cat", b"a cat sat")
    assert [bool(reason) for reason in got[ROW_ERRORS]] == [False, True]
    assert b"more than 4 tokens" in got[ROW_ERRORS][1]


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({}, "takes the input text; got none"),
        ({"words": np.array([[b"a"]], object)}, "got words"),
        ({"text": np.array([[1]])}, "int64"),
        ({"text": np.array([b"a"], object)}, r"object \(1,\)"),
        ({"text": np.array([[b"a", b"b"]], object)}, r"object \(1, 2\)"),
    ],
)
def test_other_inputs_are_refused(load, inputs, named):
    """What came is named."""
    with pytest.raises(GraphFailed, match=named):
        load().run(inputs, {}, exclusive=False)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "None"}}'])
def test_another_file_is_refused(tmp_path, content):
    """The error names the file and gives the library's reason in one line."""
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer") as caught:
        CpuDevice().load(GraphSource.of(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tokenizer", "options", "parts"),
    [
        ({}, {"max_length": "2"}, ["at most 2 tokens", "2 special ones", "to 3 or more"]),
        ({"max_length": 0}, {"overflow": "error"}, ["'tokenizer.overflow'", "how long"]),
    ],
)
def test_lengths_that_make_no_sense_are_refused_at_load(load, tokenizer, options, parts):
    """The library would not cut at all where only special tokens would be left."""
    with pytest.raises(ConfigError) as caught:
        load(options, **tokenizer)
    assert all(part in str(caught.value) for part in parts)


def test_one_token_is_enough_without_special_ones(load):
    """The smallest length that leaves something."""
    graph = load({"max_length": "1", "add_special_tokens": "false"})
    assert run(graph, b"a cat")["input_ids"].tolist() == [[VOCABULARY["a"]]]


def pairs(*rows):
    first, second = (
        np.array([[text] for text in column], object) for column in zip(*rows, strict=True)
    )
    return {"text": first, "text_pair": second}


def test_pairs_are_told_apart_by_their_types(load):
    """As the library does for two texts; the longer of the two is cut first."""
    graph = load({"pairs": "true"})
    assert [spec.name for spec in graph.signature.inputs] == ["text", "text_pair"]
    rows = [("a cat", "the mat"), ("cat", ""), ("the cat sat on a mat", "cats")]
    given = pairs(*((first.encode(), second.encode()) for first, second in rows))
    got = graph.run(given, {}, exclusive=False)
    for row, pair in enumerate(rows):
        expected = build_tokenizer().encode(*pair)
        length = got["attention_mask"][row].sum()
        assert got["input_ids"][row, :length].tolist() == expected.ids
        assert got["token_type_ids"][row, :length].tolist() == expected.type_ids
        assert length <= 8
    assert got["token_type_ids"][0].tolist() == [0, 0, 0, 0, 1, 1, 1, 0]


def test_a_pair_is_refused_for_either_of_its_texts(load):
    """Its neighbour is not."""
    graph = load({"pairs": "true"})
    given = pairs((b"cat", b"\xff"), (b"cat", b"mat"), (b"\xff", b"mat"))
    got = graph.run(given, {}, exclusive=False)
    assert [b"not UTF-8" in reason for reason in got[ROW_ERRORS]] == [True, False, True]
    with pytest.raises(GraphFailed, match="takes the input text and text_pair; got text"):
        graph.run(texts(b"cat"), {}, exclusive=False)


def test_a_pair_needs_room_for_a_token_beside_three_special_ones(load):
    """The library would not cut at all."""
    with pytest.raises(ConfigError, match="beside the 3 special ones"):
        load({"pairs": "true", "max_length": "3"})


def test_options_are_read():
    """Those of other engines are not this one's business; spaces do not count."""
    given = (
        ("ge.x", "y"),
        ("tokenizer.add_special_tokens", "false"),
        ("tokenizer.data_type", " INT32 "),
        ("tokenizer.lower_case", "true"),
        ("tokenizer.max_length", "16"),
        ("tokenizer.overflow", "error"),
        ("tokenizer.pairs", "true"),
        ("tokenizer.strip", "true"),
    )
    assert read_options(given) == TokenizerOptions(
        max_length=16,
        overflow="error",
        pairs=True,
        add_special_tokens=False,
        strip=True,
        lower_case=True,
        data_type="INT32",
    )
    assert read_options(()) == TokenizerOptions()


@pytest.mark.parametrize(
    ("key", "text", "parts"),
    [
        ("speed", "1", ["tokenizer.speed", "known are", "tokenizer.max_length"]),
        ("max_length", "-1", ["tokenizer.max_length", "'-1'"]),
        ("overflow", "drop", ["tokenizer.overflow", "'drop'", "truncate, error"]),
        ("add_special_tokens", "yes", ["'yes'", "true, false"]),
        ("strip", "1", ["'1'", "true, false"]),
        ("data_type", "FP32", ["'FP32'", "INT64, INT32"]),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(key, text, parts):
    """With what it is and what it could be."""
    with pytest.raises(ConfigError) as caught:
        read_options(((f"tokenizer.{key}", text),))
    assert all(part in str(caught.value) for part in parts)


def test_runs_from_several_threads_at_once(load):
    """Each gets the tokens of its own texts."""
    graph = load(max_length=0)
    wrong = []
    start = threading.Barrier(4)

    def work(count):
        start.wait()
        for _ in range(50):
            got = run(graph, b"cat " * count, b"mat")
            if got["input_ids"][0].tolist() != [CLS, *[VOCABULARY["cat"]] * count, SEP]:
                wrong.append(count)

    threads = [threading.Thread(target=work, args=(count,)) for count in (1, 5, 30, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_needs_no_preparation(load):
    """Any shape runs, and none needs scratch memory of the device."""
    graph = load()
    graph.prepare(texts(b"", b""))
    assert graph.workspace_bytes({"text": (2, 1)}) == 0
    assert not graph.shape_policy.prepared
    assert graph.shape_policy.fixed == ()
    graph.close()


def bert():
    """A tokenizer whose special tokens are put around by BERT's own step."""
    made = build_tokenizer()
    ends = [(token, made.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    made.post_processor = tokenizers.processors.BertProcessing(*ends)
    return made


TOKENIZERS = {
    "words": build_tokenizer(),
    "bare": build_tokenizer(special=False),
    "bert": bert(),
    **{name: family_tokenizer(name) for name in FAMILIES},
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    pair=st.tuples(TEXTS, TEXTS),
    most=st.integers(5, 30),
    left=st.booleans(),
    special=st.booleans(),
)
def test_a_pair_is_cut_as_the_library_does(name, pair, most, left, special):
    """Whatever the special tokens are, whichever text is longer, and from either side."""
    tokenizer = TOKENIZERS[name]
    tokenizer.no_padding()
    tokenizer.enable_truncation(most, direction="left" if left else "right")
    (expected,) = tokenizer.encode_batch_fast([pair], add_special_tokens=special)
    tokenizer.no_truncation()
    (whole,) = tokenizer.encode_batch_fast([pair], add_special_tokens=special)
    assert cut_pair(whole, most, left=left) == (expected.ids, expected.type_ids)
    assert cut_pair(whole, 0, left=left) == (whole.ids, whole.type_ids)


def test_what_stays_of_each_is_its_share():
    """The longer one is cut first; where both are, the odd token is the longer one's."""
    assert shares(3, 4, 7) == (3, 4)
    assert shares(2, 9, 7) == (2, 5)
    assert shares(9, 8, 7) == (4, 3)
    assert shares(8, 8, 7) == (3, 4)


def test_long_pairs_take_time_by_their_length():
    """Four times the words: sixteen times the time is what the library would take, and memory."""
    tokenizer = TOKENIZERS["words"]
    tokenizer.no_padding()

    def seconds(words):
        text = "cat " * words
        begin = time.process_time()
        (whole,) = tokenizer.encode_batch_fast([(text, text)])
        assert len(cut_pair(whole, 8, left=False)[0]) == 8
        return time.process_time() - begin

    seconds(2_000)
    short, long = (min(seconds(words) for _ in range(3)) for words in (20_000, 80_000))
    assert long < 10 * short
