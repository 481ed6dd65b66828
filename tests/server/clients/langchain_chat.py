"""langchain-openai: a chat, a stream, an agent's call, a structured answer, embeddings."""

import sys

import pydantic
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

there = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none"}
chat = ChatOpenAI(model="smollm2", temperature=0, max_tokens=30, **there)
said = chat.invoke("Name a colour.")
assert said.content == "".join(piece.content for piece in chat.stream("Name a colour.")) != ""
assert said.usage_metadata["output_tokens"] > 0


class Answer(pydantic.BaseModel):
    """What the answer is parsed into."""

    red: bool


def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


for method in ("json_schema", "function_calling"):
    assert isinstance(chat.with_structured_output(Answer, method=method).invoke("Red?"), Answer)
caller = ChatOpenAI(model="caller", temperature=0, **there).bind_tools([get_weather])
called = caller.invoke("How is the weather?")
assert [call["name"] for call in called.tool_calls] == ["get_weather"]
embeddings = OpenAIEmbeddings(model="text_embedding", check_embedding_ctx_length=False, **there)
assert [len(vector) for vector in embeddings.embed_documents(["rain", "snow"])] == [96, 96]
print(said.content)
