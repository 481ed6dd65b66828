"""A guide lets exactly those tokens through that keep to its structure."""

import json
import subprocess
import sys
import threading
from calendar import isleap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import llguidance
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from builders.schemas import lenient
from builders.writer import VOCABULARY, write_tokenizer
from ge_backend.errors import DeviceUnavailable, InvalidRequest, Unsupported
from ge_text.models.guide import open_guides
from ge_text.models.json_schema import WHITE
from ge_text.models.structure import Structure, StructureKind

END = 0
HUGE = "([ab]*a[ab]{18}|b)*c"  # nearly every letter is a state of its own


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return write_tokenizer(folder)


@pytest.fixture(scope="module")
def compiled(tokenizer, folder):
    made = open_guides(folder / "tokenizer.json", VOCABULARY, (END,))
    return lambda kind, text: made(Structure(StructureKind(f"guided_{kind}"), text)).fork()


def allowed(guide, drafts=()):
    return set(np.flatnonzero(np.unpackbits(guide.mask(drafts), bitorder="little")).tolist())


def ids(tokenizer, text):
    """Return the tokens of each letter, so that a text may go on behind any of them."""
    return [token for letter in text for token in tokenizer.encode(letter).ids]


@pytest.mark.parametrize(
    ("kind", "text", "right", "wrong"),
    [
        ("choice", '["red", "green"]', ("red", "green"), ("blue", "redgreen", "re")),
        ("choice", '["a\\"b\\\\n", "\\u00e9\\n"]', ('a"b\\n', "é\n"), ("a",)),
        ("regex", "[0-9]{2,3}-x?", ("12-", "123-x"), ("1-", "12-y")),
        ("json", '{"type": "integer", "minimum": 5}', ("5", "123"), ("4", "1.5", '"5"')),
        ("json", '{"enum": [1, "a"]}', ("1", '"a"'), ("2",)),
        ("grammar", 'start: "a" b\nb: /[0-9]+/', ("a1", "a123"), ("a", "1")),
        ("grammar", 'root ::= "a" b*\nb ::= [0-9]', ("a", "a12"), ("ab",)),
    ],
)
def test_texts_that_fit_are_let_through_to_their_end(compiled, tokenizer, kind, text, right, wrong):
    """Each token of a right text is allowed and an end behind it; never so for a wrong one."""
    guide = compiled(kind, text)
    for good in right:
        tokens = [*ids(tokenizer, good), END]
        assert guide.fitting(tokens) == len(tokens)
        for count in range(len(tokens)):
            assert tokens[count] in allowed(guide, tokens[:count])
    for bad in wrong:
        tokens = [*ids(tokenizer, bad), END]
        fitting = guide.fitting(tokens)
        assert fitting < len(tokens)
        assert tokens[fitting] not in allowed(guide, tokens[:fitting])


def test_drafts_are_assumed_and_forgotten(compiled, tokenizer):
    """Masks behind drafts, an end among them, leave the guide where it was."""
    guide = compiled("choice", '["abc", "abe"]')
    before = allowed(guide)
    tokens = ids(tokenizer, "abc")
    assert allowed(guide, tokens[:2]) == set(ids(tokenizer, "ce"))
    assert allowed(guide, tokens) == {END}
    assert allowed(guide, [*tokens, END]) == {END}
    assert allowed(guide) == before
    assert not guide.complete
    for token in tokens:
        guide.advance(token)
    assert guide.complete


def test_a_guide_follows_from_its_tokens(compiled, tokenizer):
    """One that is made anew and told the tokens so far allows what the first one allows."""
    first = compiled("json", '{"type": "object", "properties": {"a": {"type": "integer"}}}')
    for token in ids(tokenizer, '{"a": 1'):
        second = compiled("json", '{"type": "object", "properties": {"a": {"type": "integer"}}}')
        first.advance(token)
    for token in ids(tokenizer, '{"a": 1'):
        second.advance(token)
    assert allowed(second) == allowed(first)


def test_forks_go_their_own_ways(compiled, tokenizer):
    """What one text takes, another one of the same beginning does not notice."""
    first = compiled("choice", '["ab", "cd"]')
    second = first.fork()
    first.advance(ids(tokenizer, "a")[0])
    assert allowed(first) == set(ids(tokenizer, "b"))
    assert set(ids(tokenizer, "ac")) <= allowed(second)


def test_threads_may_fork_and_compile_at_once(compiled):
    """Whatever the connections that requests come by, none meets a guide in use."""

    def work(number):
        for count in range(50):
            guide = compiled("regex", f"[a-z]{{{count % 5 + 1}}}")
            assert guide.fitting([number]) == 0

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("regex", "(a", "unclosed group"),
        ("regex", "(?=a)b", "look-ahead"),
        ("json", "{", "EOF while parsing"),
        ("json", "7", "object schema"),
        ("json", '{"type": "thing"}', "Invalid type: thing"),
        ("json", '{"not": {"type": "string"}}', 'Unimplemented keys: ["not"]'),
        ("json", '{"$ref": "http://127.0.0.1:1/x"}', "does not fetch"),
        ("json", '{"enum": []}', "Unsatisfiable"),
        ("json", '{"const": 9007199254740993}', "const has 9007199254740993"),
        ("json", '{"items":' * 200 + "{}" + "}" * 200, "recursion limit"),
        ("grammar", "start: nowhere", "nowhere"),
        ("grammar", "root ::= nowhere", "nowhere"),
        ("grammar", "start: " + "(" * 5000, ""),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_the_compilers_words(compiled, kind, text, message):
    """The client reads which parameter it was and why, in one line."""
    with pytest.raises(InvalidRequest, match=f"guided_{kind} cannot be compiled: .") as caught:
        compiled(kind, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_structure_that_takes_too_long_is_refused(tokenizer, folder, monkeypatch):
    """The request and others go on; here the library waits until it is let go."""
    waiting, real = threading.Event(), llguidance.LLMatcher
    made = open_guides(folder / "tokenizer.json", VOCABULARY, (END,))
    monkeypatch.setattr("ge_text.models.timed_compiler.COMPILE_TIMEOUT_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(llguidance, "LLMatcher", lambda *_, **__: waiting.wait() and None)
        with pytest.raises(InvalidRequest, match="guided_regex cannot be compiled: it takes more"):
            made(Structure(StructureKind.REGEX, "[a-z]"))
    assert llguidance.LLMatcher is real
    assert made(Structure(StructureKind.REGEX, "[0-9]"))
    waiting.set()


def test_what_a_lenient_schema_does_not_hold_to_is_in_the_log(compiled, tokenizer, caplog):
    """The rest of it is held to; without the option it is refused."""
    schema = {"type": "string", "maxLength": 2, "format": "path"}
    assert compiled("json", json.dumps(lenient(schema))).fitting(ids(tokenizer, '"a/b')) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "guided_json is kept to but for this: Unknown format: path"
    ]
    with pytest.raises(InvalidRequest, match="Unknown format: path"):
        compiled("json", json.dumps(schema))


@pytest.mark.parametrize("rest", ["", "T10:00:00Z"])
def test_a_date_is_a_day_that_its_year_has(compiled, tokenizer, rest):
    """A schema's own pattern holds beside it."""
    schema = {"type": "string", "format": "date-time" if rest else "date", "pattern": "^(1|2)"}
    guide = compiled("json", json.dumps(schema))
    for year in (1900, 1904, 1999, 2000, 2022, 2024, 2096, 2100, 3000):
        for day in ("01-31", "02-28", "02-29", "02-30", "03-29", "04-30", "04-31", "12-31"):
            text = ids(tokenizer, f'"{year}-{day}{rest}"')
            there = day not in ("02-30", "04-31") and (day != "02-29" or isleap(year))
            assert (guide.fitting(text) == len(text)) == (there and year < 3000), (year, day)


def test_any_schema_of_a_one_of_may_hold(compiled, tokenizer):
    """Also where they overlap: which one holds alone is not known before the end."""
    guide = compiled("json", '{"oneOf": [{"enum": [1, 2]}, {"enum": [2, "a"]}]}')
    assert [guide.fitting([*ids(tokenizer, text), END]) for text in ("1", '"a"')] == [2, 4]


def test_a_token_that_does_not_fit_is_told_with_the_next_mask(compiled, tokenizer):
    """Taking it raises nothing; from then on there is no mask."""
    guide = compiled("choice", '["ab"]')
    guide.advance(ids(tokenizer, "x")[0])
    assert not guide.complete
    with pytest.raises(InvalidRequest, match="guided_choice cannot be kept to"):
        guide.mask()


@pytest.fixture
def narrow(tokenizer, folder, monkeypatch):
    """Return what makes guides of HUGE, which are beyond their limits after some hundred letters."""
    monkeypatch.setattr("ge_text.models.guide.MAX_STATES", 500)
    made = open_guides(folder / "tokenizer.json", VOCABULARY, (END,))
    return lambda: made(Structure(StructureKind.REGEX, HUGE)).fork()


def letters(tokenizer, seed, count=600):
    """Return tokens of so many letters that HUGE may have."""
    drawn = np.random.default_rng(seed).integers(2, size=count).tolist()
    return [ids(tokenizer, "ab")[one] for one in drawn]


def test_rules_of_rules_may_be_as_deep_as_a_grammar_is_long(tokenizer, folder):
    """A request's grammar ends no process: this one's own, to see that."""
    deepest = "".join(f"\na{n}: {'(' * 20}a{n + 1}{')' * 20}" for n in range(1200))
    chain = "".join(f"\na{n}: a{n + 1}" for n in range(4800))
    program = (
        "import sys; from pathlib import Path; from ge_text.models.guide import *; "
        "from ge_text.models.structure import *; "
        "made = open_guides(Path(sys.argv[1]), 300, (0,)); "
        "guide = made(Structure(StructureKind.GRAMMAR, sys.argv[2])).fork(); "
        "print(guide.fitting([int(sys.argv[3]), 0]))"
    )
    for rules, last in ((deepest, 1200), (chain, 4800)):
        grammar = f'start: a0{rules}\na{last}: "x"'
        given = [str(folder / "tokenizer.json"), grammar, *map(str, ids(tokenizer, "x"))]
        done = subprocess.run(
            [sys.executable, "-c", program, *given], capture_output=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, b"2\n"), done.stderr


def test_a_structure_for_which_no_thread_begins_is_unavailable(compiled, monkeypatch):
    """It may be had later; the size of other threads' stacks is as before."""
    before = threading.stack_size()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("no new thread")))
        with pytest.raises(DeviceUnavailable, match="no structure can be compiled now: no new"):
            compiled("regex", "nothing like it")
    assert threading.stack_size() == before
    assert compiled("regex", "nothing like it")


def write(guide, tokens):
    for token in tokens:
        guide.advance(token)
        guide.mask()


def exhaust(guide, tokens):
    """Let a text take tokens until its structure is beyond its limits."""
    with pytest.raises(InvalidRequest, match="guided_regex cannot be kept to: lexer error: too m"):
        write(guide, tokens)


def test_a_text_beyond_the_limits_fails_alone(narrow, tokenizer):
    """Others of the same structure go on, and others begin, however often that happens."""
    for seed in range(3):
        neighbour = narrow()
        before = letters(tokenizer, seed + 10, 30)
        for token in before:
            neighbour.advance(token)
        exhaust(narrow(), letters(tokenizer, seed))
        assert allowed(neighbour) == allowed(narrow(), before)


def test_a_text_may_be_whole_behind_the_limits_of_others(narrow, tokenizer):
    """Its last token ends it as if it were alone."""
    guide = narrow()
    exhaust(narrow(), letters(tokenizer, 1))
    for token in ids(tokenizer, "bc"):
        assert not guide.complete
        guide.advance(token)
    assert guide.complete


def test_drafts_beyond_the_limits_fail_no_text(narrow, tokenizer):
    """Nothing may follow behind them; the text itself goes on, and ends, as if there were none."""
    guide, drafts = narrow(), letters(tokenizer, 1)
    before = allowed(guide)
    assert allowed(guide, drafts) == set()
    assert allowed(guide) == before
    assert allowed(guide, drafts) == set()
    guide.advance(ids(tokenizer, "b")[0])
    guide.advance(ids(tokenizer, "c")[0])
    assert guide.complete


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("choice", '["x<br>"]'),
        ("regex", "x<br>y?"),
        ("json", '{"const": "<br>"}'),
        ("grammar", 'start: "x" "<br>"'),
        ("grammar", '%llguidance {}\nstart: "x" "<br>"'),
    ],
)
def test_a_certain_text_may_read_like_a_special_token(tmp_path, kind, text, special):
    """It is told in letters: the token is no text to the library, also where the file says it is.

    Any added token of the form <…> is special to it, llguidance 1.9.1.
    """
    tokenizer = write_tokenizer(tmp_path)
    tokenizer.add_tokens([AddedToken("<br>", special=special, normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    known = tokenizer.get_vocab_size()
    guide = open_guides(tmp_path / "tokenizer.json", known, (END,))(
        Structure(StructureKind(f"guided_{kind}"), text)
    ).fork()
    written = []
    while END not in (found := allowed(guide)):
        written.append(min(found))
        assert guide.fitting([written[-1]]) == 1
        guide.advance(written[-1])
        assert len(written) < 20
    assert "<br>" in tokenizer.decode(written)
    assert known - 1 not in written
    assert allowed(guide.fork(), [END]) == {END}


def test_white_space_comes_to_an_end(compiled, tokenizer):
    """JSON may be written in one line or indented, but not with white space for ever."""
    guide = compiled("json", '{"type": "object", "properties": {"a": {"type": "array"}}}')
    for indent in (None, 2):
        text = json.dumps({"a": [1, [2]]}, indent=indent)
        assert guide.fitting(ids(tokenizer, text)) == len(text)
    assert guide.fitting(ids(tokenizer, "{" + " " * 9)) == 2
    assert guide.fitting(ids(tokenizer, "{\n" + " " * 30)) == 18
    assert WHITE.endswith("?")


def test_tokens_that_only_one_side_knows_are_never_allowed(tokenizer, folder):
    """A model may have more tokens than its tokenizer, or fewer."""
    anything = Structure(StructureKind.REGEX, "[a-z]*")
    for vocabulary in (VOCABULARY - 50, VOCABULARY + 50):
        guide = open_guides(folder / "tokenizer.json", vocabulary, (END,))(anything)
        assert END in allowed(guide)
        assert max(allowed(guide)) < VOCABULARY


@pytest.mark.parametrize("vocabulary", [VOCABULARY, VOCABULARY + 50])
def test_a_model_without_ends_of_text_is_complete_all_the_same(tokenizer, folder, vocabulary):
    """Where nothing may follow the text is whole, though no token says so."""
    guide = open_guides(folder / "tokenizer.json", vocabulary, ())(
        Structure(StructureKind.CHOICE, '["ab"]')
    )
    guide = guide.fork()
    for token in ids(tokenizer, "ab"):
        assert not guide.complete
        guide.advance(token)
    assert guide.complete
    assert allowed(guide) == {vocabulary}


def test_an_end_of_text_may_be_a_token_that_the_tokenizer_does_not_know(tokenizer, folder):
    """It ends a text where that may end, as one that the tokenizer knows, beside it, does."""
    for eos in ((VOCABULARY + 7,), (END, VOCABULARY + 7)):
        guide = open_guides(folder / "tokenizer.json", VOCABULARY + 50, eos)(
            Structure(StructureKind.REGEX, "ab*")
        )
        assert allowed(guide).isdisjoint(eos)
        after = ids(tokenizer, "a")
        assert allowed(guide, after) == {*ids(tokenizer, "b"), *eos}
        assert guide.fitting([*after, VOCABULARY + 7]) == 2


@pytest.mark.parametrize(
    ("sign", "parts"),
    [
        ("▁", [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        ("▁", [decoders.ByteFallback(), decoders.Metaspace()]),
        ("_", [decoders.Sequence([decoders.Metaspace("_", "never"), decoders.ByteFallback()])]),
    ],
)
def test_spaces_are_known_however_the_tokenizer_tells_them(tmp_path, sign, parts):
    """Words with a sign for the space before them are spaces and words in a text."""
    vocabulary = {"a": 0, f"{sign}b": 1, sign: 2, "b": 3, "<0x20>": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    guide = open_guides(tmp_path / "tokenizer.json", len(vocabulary), ())(
        Structure(StructureKind.REGEX, "a( b)+|ab")
    )
    assert allowed(guide, [0]) >= {1, 2, 3, 4}
    assert [guide.fitting(tokens) for tokens in ([0, 1, 1, 2, 3], [0, 4, 3, 1])] == [5, 4]
    assert tokenizer.decode([0, 1, 1, 2, 3]) == "a b b b"


def test_tokenizers_that_lose_letters_are_refused_when_asked(tmp_path):
    """A checkpoint with such a tokenizer is served; a request for a structure is told why not."""
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    compile_structure = open_guides(tmp_path / "tokenizer.json", 1, ())
    with pytest.raises(Unsupported, match="guided_regex cannot be had with this tokenizer"):
        compile_structure(Structure(StructureKind.REGEX, "a"))


def test_without_the_library_a_request_is_told_what_to_install(tokenizer, folder, monkeypatch):
    """Everything else works without it."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    compile_structure = open_guides(folder / "tokenizer.json", VOCABULARY, ())
    with pytest.raises(Unsupported, match=r"guided_json needs llguidance; pip install .*structure"):
        compile_structure(Structure(StructureKind.JSON, "{}"))


def test_the_same_structure_is_compiled_once(tokenizer, folder):
    """Every request of a program brings the same schema."""
    compile_structure = open_guides(folder / "tokenizer.json", VOCABULARY, ())
    structure = Structure(StructureKind.JSON, '{"type": "object"}')
    assert compile_structure(structure) is compile_structure(replace(structure))
