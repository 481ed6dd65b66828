"""OpenAI's Agents SDK: an agent with a tool, one whose output is a model, and one with both."""

import asyncio
import sys

import pydantic
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
from agents import set_tracing_disabled as disable_tracing
from openai import AsyncOpenAI

disable_tracing(True)
client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
cities = []


@function_tool
def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    cities.append(city)
    return "sunny"


class Item(pydantic.BaseModel):
    """What the answer becomes."""

    red: bool


async def main() -> None:
    model = OpenAIChatCompletionsModel("caller", client)
    agent = Agent("weather", instructions="Be short.", tools=[get_weather], model=model)
    done = await Runner.run(agent, "How is the weather?")
    assert (done.final_output, cities) == ("It is sunny in Paris.", ["Paris"])
    streamed = Runner.run_streamed(agent, "How is the weather?")
    assert [event async for event in streamed.stream_events()]
    assert (streamed.final_output, cities) == ("It is sunny in Paris.", ["Paris", "Paris"])
    chat = OpenAIChatCompletionsModel("smollm2", client)
    settings = ModelSettings(max_tokens=60, temperature=0)
    typed = Agent("typed", model=chat, output_type=Item, model_settings=settings)
    done = await Runner.run(typed, "Is a rose red?")
    assert isinstance(done.final_output, Item)
    both = Agent(
        "both", model=model, tools=[get_weather], output_type=Item, model_settings=settings
    )
    done = await Runner.run(both, "How is the weather?")
    assert (type(done.final_output), len(cities)) == (Item, 3)
    print(done.final_output)


asyncio.run(main())
