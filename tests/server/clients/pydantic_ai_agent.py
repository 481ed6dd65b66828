"""pydantic-ai: an agent with a tool, typed output by a tool and by a schema, and both."""

import sys

import pydantic
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="none")
agent = Agent(OpenAIChatModel("caller", provider=provider))
cities = []


@agent.tool_plain
def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    cities.append(city)
    return "sunny"


assert agent.run_sync("How is the weather?").output == "It is sunny in Paris."
assert cities == ["Paris"]


class Item(pydantic.BaseModel):
    """What answers become."""

    red: bool


chat = OpenAIChatModel("smollm2", provider=provider)
for kind in (Item, NativeOutput(Item)):
    typed = Agent(chat, output_type=kind, model_settings={"max_tokens": 60, "temperature": 0})
    item = typed.run_sync("Is a rose red?").output
    assert isinstance(item, Item)
    print(item)
both = Agent(
    OpenAIChatModel("caller", provider=provider),
    output_type=NativeOutput(Item),
    tools=[get_weather],
    model_settings={"max_tokens": 60, "temperature": 0},
)
assert isinstance(both.run_sync("How is the weather?").output, Item)
assert cities == ["Paris", "Paris"]
