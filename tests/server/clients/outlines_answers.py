"""outlines, by its models openai and vllm: a text, one of several, and JSON of a model."""

import sys
from typing import Literal

import openai
import outlines
import pydantic


class Item(pydantic.BaseModel):
    """What the answer becomes."""

    red: bool


client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
short = {"max_tokens": 40, "temperature": 0}
model = outlines.from_openai(client, "smollm2")
assert model("Name a colour.", **short)
item = Item.model_validate_json(model("Is a rose red?", Item, **short))
served = outlines.from_vllm(client, "smollm2")
said = served("Is a rose red?", Literal["yes", "no"], **short)
assert said in {"yes", "no"}
print(item, said)
