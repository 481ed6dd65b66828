"""instructor: an answer as a pydantic model, by a tool, by JSON and by a schema."""

import sys

import instructor
import openai
import pydantic


class Item(pydantic.BaseModel):
    """What every answer becomes."""

    count: int = pydantic.Field(ge=0, le=9)


base = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    item = instructor.from_openai(base, mode=mode).chat.completions.create(
        model="smollm2",
        response_model=Item,
        messages=[{"role": "user", "content": "Two apples."}],
        max_tokens=200,
        temperature=0,
        max_retries=0,
    )
    assert isinstance(item, Item)
    print(mode, item)
