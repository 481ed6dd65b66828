"""Models that describe themselves."""

import asyncio
import json

import pytest

from ge_openai.api_error import ApiError
from ge_openai.described import DescribedModels, read_description

SAID = {
    "id": "7f",
    "files": {"chat_template.jinja": "old"},
    "added_tokens": [{"id": 3, "content": "<a>", "special": True}],
    "adapters": ["pirate"],
}


class Server:
    """A model that says something else each time it is asked, if it is loaded anew meanwhile."""

    def __init__(self):
        self.asked, self.said = [], SAID

    async def description(self, model, wanted=""):
        self.asked.append(f"{model} {wanted}".strip())
        return json.dumps(self.said)


def test_a_model_is_asked_once_until_it_is_forgotten():
    """Then it says what it is by now."""
    server = Server()

    async def work():
        models = DescribedModels(lambda: server)
        first, described = await models.template("m")
        assert (first.render([]), described) == ("old", "7f")
        assert (first.tokens.ids, first.tokens.special) == ({"<a>": 3}, {"<a>"})
        server.said = {**SAID, "id": "8", "files": {"chat_template.jinja": "new"}}
        assert await models.template("m") == (first, "7f")
        models.forget("m")
        models.forget("n")
        second, described = await models.template("m")
        assert (second.render([]), described) == ("new", "8")

    asyncio.run(work())
    assert server.asked == ["m", "m"]


def test_adapters_are_those_of_now():
    """They come and go while a model is served."""
    server = Server()

    async def work():
        models = DescribedModels(lambda: server)
        assert await models.adapters("m") == ("pirate",)
        server.said = {"adapters": []}
        assert await models.adapters("m") == ()
        assert server.asked == ["m adapters", "m adapters"]
        server.said = {}
        with pytest.raises(ApiError, match="not known here"):
            await models.adapters("m")

    asyncio.run(work())


def test_a_model_without_a_template_is_asked_again():
    """It may be loaded anew with one."""
    server = Server()
    server.said = {**SAID, "files": {}}

    async def work():
        models = DescribedModels(lambda: server)
        with pytest.raises(ApiError) as caught:
            await models.template("m")
        assert caught.value.code == "no_chat_template"
        server.said = SAID
        assert (await models.template("m"))[1] == "7f"

    asyncio.run(work())


@pytest.mark.parametrize("text", ["", "[]", "7", '{"id": "a"}', '{"id": 1, "files": 2}'])
def test_what_is_no_description_is_told(text):
    """Another release's may be."""
    with pytest.raises(ApiError, match="says of itself what is not known here"):
        read_description(text)
