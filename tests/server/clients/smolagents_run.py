"""smolagents: an agent that calls a tool, and a chat's message."""

import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

there = {"api_base": f"{sys.argv[1]}/v1", "api_key": "none"}
cities = []


@tool
def get_weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: its name.
    """
    cities.append(city)
    return "sunny"


model = OpenAIServerModel("smollm2", max_tokens=20, temperature=0, **there)
message = model([{"role": "user", "content": [{"type": "text", "text": "Name a colour."}]}])
assert message.content
caller = OpenAIServerModel("caller", tool_choice="auto", **there)
agent = ToolCallingAgent(tools=[get_weather], model=caller, max_steps=1, verbosity_level=0)
agent.run("How is the weather?")
assert cities == ["Paris"]
print(message.content)
