"""Contents as texts or parts, as a template takes them."""

import json

import pytest

from ge_openai.api_error import ApiError
from ge_openai.rendering import Rendering
from ge_openai.template_folders import template_in

LOOP = "{% for c in m.content %}{% if c.type == 'text' %}[{{ c.text }}]{% endif %}{% endfor %}"
FILTER = "{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}"
BOTH = "{% if m.content is string %}({{ m.content }}){% else %}" + LOOP + "{% endif %}"
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def template(folder, of_message, before="", **files):
    text = before + "{% for m in messages %}" + of_message + "{% endfor %}"
    text += "{% if add_generation_prompt %}>{% endif %}"
    (folder / "chat_template.jinja").write_text(text)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return template_in(folder)


@pytest.mark.parametrize(
    ("of_message", "of_text", "of_parts"),
    [
        ("{{ m.content }}", "hi>", "a\nb>"),
        ("{{ m['content'] | trim }}", "hi>", "a\nb>"),
        (LOOP, "[hi]>", "[a][b]>"),
        (FILTER, "hi>", "ab>"),
        (BOTH, "(hi)>", "[a][b]>"),
    ],
)
def test_a_template_gets_contents_as_it_takes_them(tmp_path, of_message, of_text, of_parts):
    """Nothing is lost, and nothing is printed as Python writes a list."""
    made = template(tmp_path, of_message)
    assert made.render([{"role": "user", "content": "hi"}]) == of_text
    assert made.render([{"role": "user", "content": PARTS}]) == of_parts


@pytest.mark.parametrize("of_message", ["{{ m.content }}", LOOP, BOTH])
@pytest.mark.parametrize("content", ["so: ", [{"type": "text", "text": "so: "}]])
def test_an_answer_may_go_on_within_the_last_message(tmp_path, of_message, content):
    """With its white space; what the template writes behind it is left out."""
    made = template(tmp_path, of_message + "<end>")
    asked = Rendering(answers=False, goes_on=True)
    given = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    before, _, last = made.render(given, (), asked).partition("<end>")
    assert "hi" in before
    assert last.endswith("so: ")


def test_a_message_that_cannot_be_continued_is_refused(tmp_path):
    """It has no text, or the template does not show its end."""
    asked = Rendering(answers=False, goes_on=True)
    with pytest.raises(ApiError, match="needs a last message with a text"):
        template(tmp_path, "{{ m.content }}").render([{"role": "user", "content": ""}], (), asked)
    made = template(tmp_path, "{{ m.content[:4] }}")
    with pytest.raises(ApiError, match="does not show the end of the last message"):
        made.render([{"role": "user", "content": "hi there"}], (), asked)


def test_a_message_that_a_template_leaves_out_is_refused(tmp_path):
    """Unless it is the assistant's: what it thought is left out on purpose."""
    made = template(tmp_path, "{% if m.role == 'user' %}{{ m.content }}{% endif %}")
    user = {"role": "user", "content": "hi"}
    with pytest.raises(ApiError, match="leaves out the message 'be kind'"):
        made.render([{"role": "system", "content": "be kind"}, user])
    assert made.render([user, {"role": "assistant", "content": "yes"}, user]) == "hihi>"


def test_a_template_is_told_what_a_request_says(tmp_path):
    """Names that it knows, whether an answer begins, and documents where it has a place."""
    think = "{% if enable_thinking is defined and not enable_thinking %}quick {% endif %}"
    made = template(tmp_path, "{{ m.content }}", think)
    given = [{"role": "user", "content": "hi"}]
    assert made.render(given, (), Rendering(names={"enable_thinking": False})) == "quick hi>"
    assert made.render(given, (), Rendering(answers=False)) == "hi"
    documents = ({"text": "d"},)
    with pytest.raises(ApiError, match="no place for documents"):
        made.render(given, (), Rendering(documents=documents))
    made = template(
        tmp_path, "{{ m.content }}", "{% for d in documents or [] %}{{ d.text }}{% endfor %}"
    )
    assert made.render(given, (), Rendering(documents=documents)) == "dhi>"


def test_special_tokens_of_either_file(tmp_path):
    """`special_tokens_map.json` goes before `tokenizer_config.json`, as in transformers."""
    named = {"special_tokens_map": {"bos_token": "<s>", "eos_token": "</old>"}}
    made = template(
        tmp_path,
        "{{ bos_token }}{{ m.content }}{{ eos_token }}",
        **named,
        tokenizer_config={"eos_token": "</s>"},
    )
    assert made.render([{"role": "user", "content": "hi"}]) == "<s>hi</old>>"
