"""OpenAI's HTTP API in front of a running server: language models and text embeddings."""
