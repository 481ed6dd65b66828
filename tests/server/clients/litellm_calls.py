"""LiteLLM by its providers openai, hosted_vllm and cohere: a chat, a stream, a call, embeddings, ranks."""

import sys

import litellm

base = f"{sys.argv[1]}/v1"
there = {"api_base": base, "api_key": "none"}
messages = [{"role": "user", "content": "Name a colour."}]
for provider in ("openai", "hosted_vllm"):
    said = litellm.completion(f"{provider}/smollm2", messages, max_tokens=9, temperature=0, **there)
    pieces = litellm.completion(
        f"{provider}/smollm2", messages, max_tokens=9, temperature=0, stream=True, **there
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
    assert text == said.choices[0].message.content != ""
tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
called = litellm.completion("openai/caller", messages, tools=[tool], **there)
assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
vectors = litellm.embedding("openai/text_embedding", ["rain", "snow"], **there).data
assert [len(each["embedding"]) for each in vectors] == [96, 96]
documents = ["The team won the match", "Heavy rain is expected"]
for model, where in (
    ("hosted_vllm/text_ranker", sys.argv[1]),
    ("cohere/text_ranker", f"{base}/rerank"),
    ("jina_ai/text_ranker", f"{base}/rerank"),
):
    ranked = litellm.rerank(
        model=model, query="rain", documents=documents, top_n=1, api_base=where, api_key="none"
    )
    assert [each["index"] for each in ranked.results] == [1]
try:
    litellm.completion("openai/smollm2", [{"role": "user", "content": "a " * 9000}], **there)
except litellm.ContextWindowExceededError:
    print(text)
else:
    raise AssertionError("a prompt that is too long was taken")
