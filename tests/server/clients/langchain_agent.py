"""langchain: agents with a tool whose answer is a model, by the provider's format and by a tool."""

import sys

import pydantic
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_openai import ChatOpenAI

there = {"base_url": f"{sys.argv[1]}/v1", "api_key": "none", "temperature": 0}
cities = []


class Item(pydantic.BaseModel):
    """What the answer becomes."""

    red: bool


def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    cities.append(city)
    return "sunny"


asked = {"messages": [{"role": "user", "content": "How is the weather?"}]}
for strategy in (ProviderStrategy(Item), ProviderStrategy(Item, strict=True)):
    agent = create_agent(
        ChatOpenAI(model="caller", max_tokens=60, **there),
        tools=[get_weather],
        response_format=strategy,
    )
    cities.clear()
    said = agent.invoke(asked)
    assert isinstance(said["structured_response"], Item), said
    assert cities == ["Paris"], strategy
    print(said["structured_response"])
chat = ChatOpenAI(model="smollm2", max_tokens=60, **there)
for strategy in (ProviderStrategy(Item), ToolStrategy(Item)):
    said = create_agent(chat, tools=[], response_format=strategy).invoke(asked)
    assert isinstance(said["structured_response"], Item), said
