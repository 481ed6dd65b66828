"""vLLM: language models run by its `AsyncLLM`, which plans steps and keeps caches by itself."""
