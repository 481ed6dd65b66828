"""LlamaIndex's OpenAILike: a completion, a chat, a stream, a call of a tool."""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

there = {"api_base": f"{sys.argv[1]}/v1", "api_key": "none", "context_window": 2048}
model = OpenAILike(model="smollm2", is_chat_model=True, max_tokens=20, temperature=0, **there)
said = model.chat([ChatMessage(role="user", content="Name a colour.")]).message.content
parts = model.stream_chat([ChatMessage(role="user", content="Name a colour.")])
assert "".join(part.delta or "" for part in parts) == said != ""
writer = OpenAILike(model="smollm2", is_chat_model=False, max_tokens=8, temperature=0, **there)
assert writer.complete("once upon").text


def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


caller = OpenAILike(model="caller", is_chat_model=True, is_function_calling_model=True, **there)
answer = caller.predict_and_call([FunctionTool.from_defaults(get_weather)], "The weather?")
assert str(answer) == "sunny in Paris"
print(said)
