"""Chat templates of checkpoints."""

import json

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer

from ge_openai.api_error import ApiError
from ge_openai.chat_template import ChatTemplate
from ge_openai.template_folders import template_files, template_in

MESSAGES = [{"role": "user", "content": "hi"}]
SILENT = [{"role": "user", "content": ""}]  # for templates that show no message


def template(folder, config, tokenizer=None):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return template_in(folder)


def test_it_has_the_messages_and_the_special_tokens(tmp_path):
    """Tokens may be objects; blocks leave no blank lines."""
    text = "{{ bos_token }}\n{% for m in messages %}\n{{ m.role }}={{ m.content }}{{ eos_token }}\n{% endfor %}\n{% if add_generation_prompt %}\n>{% endif %}"
    config = {"chat_template": text, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    assert template(tmp_path, config).render(MESSAGES) == "<s>\nuser=hi</s>\n>"


@pytest.mark.parametrize(
    ("config", "beside", "written"),
    [
        ({"bos_token": "<c>"}, {"bos_token": "<s>", "eos_token": "</s>"}, "<s></s>"),
        ({"bos_token": None}, {"bos_token": "<s>"}, "<s>"),
        ({"bos_token": "<c>", "added_tokens_decoder": {}}, {"eos_token": "</s>"}, "<c>"),
        ({"extra_special_tokens": {"image_token": "<i>"}}, {}, "<i>"),
        ({"model_specific_special_tokens": {"image_token": "<i>"}}, {}, "<i>"),
        ({"image_token": "<i>", "extra_special_tokens": ["<x>"]}, {}, "<i>"),
    ],
)
def test_special_tokens_have_the_names_that_transformers_gives_them(
    tmp_path, config, beside, written
):
    """By the file beside the configuration first, if that says no added tokens itself."""
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(beside))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}{{ image_token }}")
    assert template(tmp_path, config).render(SILENT) == written
    read = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    read.save(str(tmp_path / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.apply_chat_template(SILENT, tokenize=False) == written


def test_a_file_of_its_own_goes_before(tmp_path):
    """As newer versions of transformers write it."""
    (tmp_path / "chat_template.jinja").write_text("file")
    assert template(tmp_path, {"chat_template": "config"}).render(SILENT) == "file"


def test_the_prompt_is_what_the_template_writes(tmp_path):
    """Whatever the tokenizer adds to other texts: to this one it adds nothing."""
    post = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}],
    }
    config = {"chat_template": "<s>{{ messages[0].content }}<s>"}
    made = template(tmp_path, config, {"post_processor": post})
    assert made.render(MESSAGES) == "<s>hi<s>"


def test_a_variant_for_tools(tmp_path):
    """Where the checkpoint has several, tools choose theirs."""
    several = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools | tojson }}"},
    ]
    made = template(tmp_path, {"chat_template": several})
    assert made.render(SILENT) == "plain"
    assert made.render(SILENT, [{"f": "ü<"}]) == '[{"f": "ü<"}]'


def test_a_variant_in_a_file_of_its_own(tmp_path):
    """Where transformers writes all but the default; they are files of the template, too."""
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("{{ tools | tojson }}")
    (folder / "notes.txt").write_text("{% not a template")
    (tmp_path / "chat_template.jinja").write_text("plain")
    made = template(tmp_path, {"chat_template": "config"})
    assert made.render(SILENT) == "plain"
    assert made.render(SILENT, [{"f": 1}]) == '[{"f": 1}]'
    assert [path.name for path in template_files(tmp_path)] == [
        "tokenizer_config.json",
        "chat_template.jinja",
        "tool_use.jinja",
    ]


@pytest.mark.parametrize(
    ("together", "text"),
    [("[x] + messages", "system user "), ("messages + [x]", "user system ")],
)
def test_a_template_can_join_messages_with_its_own(tmp_path, together, text):
    """They are a list, as from transformers; many begin with a system prompt of the model's."""
    text_of = (
        "{% set x = {'role': 'system', 'content': 'be kind'} %}{% set all = TOGETHER %}"
        "{% for m in all %}{{ m.role }} {% endfor %}"
    )
    made = template(tmp_path, {"chat_template": text_of.replace("TOGETHER", together)})
    assert made.render(tuple(SILENT)) == text


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}


def called(content):
    return {"role": "assistant", "content": content, "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("content", "text"), [("", 'hi|<call>f\n{"a": "é"}'), ("hm", 'hi|hm<call>f\n{"a": "é"}')]
)
def test_a_template_that_adds_arguments_to_a_text_gets_them_as_one(tmp_path, content, text):
    """DeepSeek-R1's, for which an answer without a content has none, not an empty one."""
    call = "{{ '<call>' + call.function.name + '\n' + call.function.arguments }}"
    calls = (
        "{% for call in m.tool_calls %}"
        f"{{% if m.content is none %}}{call}{{% else %}}{{{{ m.content }}}}{call}{{% endif %}}"
        "{% endfor %}"
    )
    of_message = f"{{% if 'tool_calls' in m %}}{calls}{{% else %}}{{{{ m.content }}}}|{{% endif %}}"
    made = template(
        tmp_path, {"chat_template": f"{{% for m in messages %}}{of_message}{{% endfor %}}"}
    )
    given = [*MESSAGES, called(content)]
    assert made.render(given) == text
    assert given[1] == called(content)


@pytest.mark.parametrize(
    ("shown", "arguments", "text"),
    [
        ("{{ call.function.arguments | tojson }}", [1], "hi|[1]"),
        ("{% for k, v in call.function.arguments.items() %}{{ k }}{% endfor %}", [1], "hi|"),
        ("{% for k, v in call.function.arguments.items() %}{{ k }}{% endfor %}", {"a": 1}, "hi|a"),
        ("{% for k, v in call.function.arguments | items %}{{ k }}{% endfor %}", 7, "hi|"),
    ],
)
def test_arguments_that_are_no_object_are_shown_where_they_can_be(tmp_path, shown, arguments, text):
    """Some templates go through the arguments' names: to them such a call has none."""
    calls = f"{{% for call in m.tool_calls or [] %}}{shown}{{% endfor %}}"
    of_message = f"{{% for m in messages %}}{{% if m.content %}}{{{{ m.content }}}}|{{% endif %}}{calls}{{% endfor %}}"
    made = template(tmp_path, {"chat_template": of_message})
    call = CALL | {"function": {"name": "f", "arguments": arguments}}
    assert made.render([*MESSAGES, called("") | {"tool_calls": [call]}]) == text


@pytest.mark.parametrize("nine", ["call.id | length != 9", "call.id|length!=9", "length 9"])
def test_ids_of_calls_are_as_mistrals_templates_want_them(tmp_path, nine):
    """They refuse all others; templates that say nothing of them show the client's."""
    shown = "{% for call in messages[1].tool_calls %}{{ call.id }}{% endfor %}"
    asked = f"{{% if '{nine}' %}}{{% endif %}}"
    given = [*SILENT, called("")]
    assert template(tmp_path, {"chat_template": shown}).render(given) == "1"
    assert len(template(tmp_path, {"chat_template": asked + shown}).render(given)) == 9


def test_a_template_that_fails_over_its_types_either_way_says_so(tmp_path):
    """Messages without calls are no reason to try again."""
    made = template(tmp_path, {"chat_template": "{{ messages[0].content + 1 }}"})
    for given in (MESSAGES, [called("hm")]):
        with pytest.raises(ApiError, match=r'refuses the messages: can only concat.*"int"'):
            made.render(given)


@pytest.mark.parametrize("first", ["system", "developer"])
def test_a_developers_message_is_the_systems_where_the_template_knows_no_developers(
    tmp_path, first
):
    """Qwen's would leave it out without a word; OpenAI's clients write it."""
    of_message = f"{{% if m.role in ['{first}', 'user'] %}}{{{{ m.role }}}}: {{{{ m.content }}}}|"
    text = f"{{% for m in messages %}}{of_message}{{% endif %}}{{% endfor %}}"
    made = template(tmp_path, {"chat_template": text})
    given = [{"role": "developer", "content": "be kind"}, *MESSAGES]
    assert made.render(given) == f"{first}: be kind|user: hi|"


def test_what_a_chat_does_not_have_is_none(tmp_path):
    """As from transformers: templates ask whether it is defined, or whether it is none."""
    text = "{{ tools is none }} {{ documents is none }}"
    assert template(tmp_path, {"chat_template": text}).render(SILENT) == "True True"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", '[{"f": "ü<", "a": 1}]'),
        ("ensure_ascii=False, sort_keys=True", '[{"a": 1, "f": "ü<"}]'),
        ("True", '[{"f": "\\u00fc<", "a": 1}]'),
        ("indent=1", '[\n {\n  "f": "ü<",\n  "a": 1\n }\n]'),
        ("separators=(',', ':')", '[{"f":"ü<","a":1}]'),
    ],
)
def test_json_is_written_as_transformers_filter_does(tmp_path, arguments, text):
    """With its arguments, in their order."""
    made = template(tmp_path, {"chat_template": f"{{{{ tools | tojson({arguments}) }}}}"})
    assert made.render(SILENT, [{"f": "ü<", "a": 1}]) == text


def test_names_and_tags_of_transformers(tmp_path):
    """Loop controls, the date, and the mark of what is generated."""
    text = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}{% generation %}x{% endgeneration %}{{ strftime_now('%Y') | length }}"
    assert template(tmp_path, {"chat_template": text}).render(SILENT) == "01x4"


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.missing.more }}",
        "{{ 1 / 0 }}",
    ],
)
def test_what_a_template_refuses_is_the_requests_error(tmp_path, text):
    """Its own words reach the client."""
    with pytest.raises(ApiError, match="refuses the messages") as caught:
        template(tmp_path, {"chat_template": text}).render(MESSAGES)
    assert caught.value.status == 400


def test_a_template_cannot_leave_its_sandbox(tmp_path):
    """It comes with a checkpoint, from anywhere."""
    text = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(ApiError, match="unsafe"):
        template(tmp_path, {"chat_template": text}).render(MESSAGES)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"chat_template": "{% if %}"},
        {"chat_template": [{"name": "a"}]},
        {"chat_template": 3},
        [],
    ],
)
def test_a_checkpoint_without_a_template_says_so(tmp_path, config):
    """Or with one that cannot be read."""
    with pytest.raises(ApiError, match="the model's"):
        template(tmp_path, config)


@pytest.mark.parametrize("config", [{}, {"chat_template": None}])
def test_a_checkpoint_that_has_no_template_is_known_by_its_code(tmp_path, config):
    """The page goes on with completions then; null is none, as for transformers."""
    with pytest.raises(ApiError) as caught:
        template(tmp_path, config)
    assert caught.value.code == "no_chat_template"


def test_added_tokens_are_read_from_the_tokenizers_file(tmp_path):
    """Special ones are told apart; without the file there are none, and a broken one is told."""
    made = template(tmp_path, {"chat_template": "x"})
    assert (made.tokens.ids, made.tokens.special) == ({}, frozenset())
    added = [{"id": 7, "content": "<a>", "special": True}, {"id": 8, "content": "b"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    made = template(tmp_path, {"chat_template": "x"})
    assert (made.tokens.ids, made.tokens.special) == ({"<a>": 7, "b": 8}, {"<a>"})
    for broken in ('{"added_tokens": [7]}', '{"added_tokens": 7}', "{"):
        (tmp_path / "tokenizer.json").write_text(broken)
        with pytest.raises(ApiError, match=r"the model's tokenizer.json cannot be read"):
            _ = template(tmp_path, {"chat_template": "x"}).tokens


BEFORE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}, {"SpecialToken": {"id": "</s>"}}],
}


@pytest.mark.parametrize(
    ("processor", "before"),
    [
        (None, ""),
        ({"type": "ByteLevel"}, ""),
        (BEFORE, "<s>"),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, BEFORE]}, "<s>"),
    ],
)
def test_what_a_tokenizer_puts_before_texts_is_read_from_its_file(tmp_path, processor, before):
    """Behind a text is another thing."""
    made = template(tmp_path, {"chat_template": "x"}, {"post_processor": processor})
    assert made.begins == before


@pytest.mark.parametrize("broken", ['{"post_processor": 7}', "{"])
def test_a_broken_tokenizers_file_is_told(tmp_path, broken):
    """As where its tokens are asked for."""
    made = template(tmp_path, {"chat_template": "x"})
    (tmp_path / "tokenizer.json").write_text(broken)
    with pytest.raises(ApiError, match=r"the model's tokenizer.json cannot be read"):
        _ = made.begins


def test_a_template_needs_no_folder():
    """Files are texts by their names, and a tokenizer is read when it is asked for."""
    files = {
        "tokenizer_config.json": '{"bos_token": "<s>"}',
        "chat_template.jinja": "{{ bos_token }}",
    }
    files["additional_chat_templates/tool_use.jinja"] = "tools"
    made = ChatTemplate(files, lambda: '{"added_tokens": [{"id": 7, "content": "<a>"}]}')
    assert (made.render(SILENT), made.render(SILENT, [{}])) == ("<s>", "tools")
    assert (made.tokens.ids, ChatTemplate(files).tokens.ids) == ({"<a>": 7}, {})
