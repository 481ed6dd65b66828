"""OpenAI's own client: models, a chat whole and as a stream, a tool's call, a parsed answer, embeddings."""

import sys

import openai
import pydantic

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
assert {"caller", "smollm2"} <= {model.id for model in client.models.list()}
messages = [{"role": "user", "content": "Name a colour."}]
ask = {"messages": messages, "max_tokens": 40, "temperature": 0}
said = client.chat.completions.create(model="smollm2", **ask)
streamed = client.chat.completions.create(model="smollm2", stream=True, **ask)
pieces = [event.choices[0].delta.content or "" for event in streamed]
assert "".join(pieces) == said.choices[0].message.content
assert len(pieces) > 3


class Colour(pydantic.BaseModel):
    """What the answer is parsed into."""

    red: bool


class Weather(pydantic.BaseModel):
    """What the tool takes."""

    city: str


parsed = client.chat.completions.parse(model="smollm2", response_format=Colour, **ask)
assert isinstance(parsed.choices[0].message.parsed, Colour)
tool = openai.pydantic_function_tool(Weather, name="get_weather")
with client.chat.completions.stream(model="caller", tools=[tool], **ask) as stream:
    kinds = [event.type for event in stream]
    (choice,) = stream.get_final_completion().choices
assert choice.finish_reason == "tool_calls"
assert choice.message.tool_calls[0].function.name == "get_weather"
assert "tool_calls.function.arguments.done" in kinds
vectors = client.embeddings.create(model="text_embedding", input=["rain", "snow"]).data
assert [len(each.embedding) for each in vectors] == [96, 96]
print(said.choices[0].message.content)
