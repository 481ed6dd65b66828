"""Tokens that only the files beside a `tokenizer.json` name are those that transformers has."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from ge_backend.engines.preprocess.text import open_tokenizer
from ge_backend.errors import ModelError
from ge_backend.model.files.tokenizer_file import read_tokenizer, tokenizer_files

SETTINGS = "tokenizer_config.json"
OTHERS = "special_tokens_map.json"
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
END, NEXT = 257, 258  # the file's own added token, behind a word of the vocabulary


def entry(content, **flags):
    known = ("single_word", "lstrip", "rstrip", "normalized")
    return {"content": content, "special": True, **dict.fromkeys(known, False), **flags}


def flags(tokens):
    return {
        number: (token.content, token.lstrip, token.rstrip, token.normalized, token.single_word)
        for number, token in tokens.items()
    }


def write(folder, vocabulary=300, **files):
    """Write a tokenizer of bytes, the word <w> and the added token <end>, and files beside it."""
    made = Tokenizer(
        models.BPE(vocab={each: at for at, each in enumerate([*LETTERS, "<w>"])}, merges=[])
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>", normalized=False, special=True)])
    made.save(str(folder / "tokenizer.json"))
    given = {f"{name}.json": held for name, held in files.items()}
    if vocabulary:
        given["config.json"] = {"vocab_size": vocabulary}
    for name, held in {SETTINGS: FAST, **given}.items():
        (folder / name).write_text(json.dumps(held))
    return folder / "tokenizer.json"


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"added_tokens_decoder": {"258": entry("<u>")}}},
        {"tokenizer_config": {"added_tokens_decoder": {"290": entry("<u>")}}},
        {
            "tokenizer_config": {
                "added_tokens_decoder": {
                    "290": entry("<b>"),
                    "280": entry("<a>", special=False),
                    "20": entry("<c>", lstrip=True),
                }
            }
        },
        {"tokenizer_config": {"added_tokens_decoder": {"256": entry("<w>", rstrip=True)}}},
        {"tokenizer_config": {"added_tokens_decoder": {"257": entry("<end>", special=False)}}},
        {
            "tokenizer_config": {
                "bos_token": "<s>",
                "added_tokens_decoder": {"258": entry("<s>", special=False, lstrip=True)},
            }
        },
        {"tokenizer_config": {"bos_token": "<s>", "eos_token": "<end>", "image_token": "<img>"}},
        {"tokenizer_config": {"bos_token": {"__type": "AddedToken", **entry("<s>", lstrip=True)}}},
        {
            "tokenizer_config": {
                "added_tokens_decoder": {"290": entry("<d>")},
                "pad_token": "<pad>",
                "extra_special_tokens": ["<y>"],
                "image_token": "<i>",
                "bos_token": "<s>",
            }
        },
        {"tokenizer_config": {"extra_special_tokens": {"image_token": "<i>"}}},
        {
            "special_tokens_map": {
                "bos_token": "<s>",
                "pad_token": entry("<pad>", lstrip=True),
                "additional_special_tokens": ["<x>", "<y>"],
            }
        },
        {
            "tokenizer_config": {"added_tokens_decoder": {}},
            "special_tokens_map": {"bos_token": "<s>"},
        },
        {
            "tokenizer_config": {"extra_special_tokens": ["<sp>"]},
            "added_tokens": {"<q>": 258, "<sp>": 259},
        },
    ],
)
def test_they_are_those_of_transformers(tmp_path, files):
    """In number, text and flags, and so in what they make of a text, and of tokens.

    Of a token that was special and is no more transformers tells so, and leaves it out all the same.
    """
    files["tokenizer_config"] = FAST | files.get("tokenizer_config", {})
    path = write(tmp_path, **files)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = open_tokenizer(path)
    made = Tokenizer.from_str(read_tokenizer(path).text).get_added_tokens_decoder()
    assert flags(made) == flags(theirs.added_tokens_decoder)
    text = "x <s> <end><w> <u><a><b><c><d><i><img><pad> <x><y><q><sp>."
    assert ours.encode(text).tolist() == theirs.encode(text)
    kept = [token for token in ours.encode(text).tolist() if token not in ours.special]
    assert "".join(map(ours.stream().step, kept)) == theirs.decode(
        theirs.encode(text), skip_special_tokens=True
    )


def test_a_token_that_the_model_lacks_stays_text(tmp_path, caplog):
    """Its number would be beyond what the model can look up; the log says so once per opening."""
    settings = FAST | {"pad_token": "<pad>", "extra_special_tokens": ["<x>"]}
    ours = open_tokenizer(write(tmp_path, NEXT + 1, tokenizer_config=settings))
    assert ours.encode("<pad>").tolist() == [NEXT]
    assert len(ours.encode("<x>")) == 3
    (said,) = (record.getMessage() for record in caplog.records)
    assert "'<x>' would have number 259" in said
    assert "the model's tokens are 0 to 258" in said


def test_without_a_model_beside_it_the_tokenizers_own_tokens_are_all(tmp_path):
    """A tokenizer of its own tells nothing of what takes its tokens."""
    settings = FAST | {"pad_token": "<pad>", "added_tokens_decoder": {"256": entry("<w>")}}
    ours = open_tokenizer(write(tmp_path, None, tokenizer_config=settings))
    assert ours.encode("<w>").tolist() == [256]
    assert len(ours.encode("<pad>")) == 5


def test_another_number_than_the_file_says_is_in_the_log(tmp_path):
    """Transformers goes by the order alone."""
    settings = FAST | {"added_tokens_decoder": {"290": entry("<u>")}}
    file = read_tokenizer(write(tmp_path, tokenizer_config=settings))
    assert [each.partition(": ")[2] for each in file.warnings] == [
        "the token '<u>' has number 258 and not 290, as with transformers"
    ]


def test_a_file_that_lacks_nothing_is_as_it_was(tmp_path):
    """No byte of it is another."""
    path = write(tmp_path, tokenizer_config=FAST | {"eos_token": "<end>", "pad_token": "<end>"})
    assert read_tokenizer(path).text == path.read_text()
    assert tokenizer_files(path) == (path, tmp_path / SETTINGS, tmp_path / "config.json")


@pytest.mark.parametrize("held", [["<u>"], {"x": entry("<u>")}, {"258": "<u>"}, {"258": {}}])
def test_entries_that_are_no_tokens_are_refused(tmp_path, held):
    """As transformers does, with the file's name."""
    settings = FAST | {"added_tokens_decoder": held}
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: added_tokens_decoder has"):
        open_tokenizer(write(tmp_path, tokenizer_config=settings))


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize("name", ["bos_token", "eos_token"])
def test_a_switch_that_the_template_does_not_follow_is_told(tmp_path, name, template):
    """Texts have the tokens that transformers gives them, which passes over the switch."""
    path = write(tmp_path, tokenizer_config={**FAST, name: "<end>", f"add_{name}": True})
    if template:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<end> $A", special_tokens=[("<end>", END)]
        )
        tokenizer.save(str(path))
    ids = AutoTokenizer.from_pretrained(tmp_path)("a").input_ids
    assert Tokenizer.from_str(read_tokenizer(path).text).encode("a").ids == ids
    assert (END in ids) == template
    warnings = [] if template else ["no text gets the token '<end>'"]
    told = [each.partition(": ")[2] for each in read_tokenizer(path).warnings]
    assert [each.partition(":")[0] for each in told] == warnings
