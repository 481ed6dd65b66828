"""Text generation by language models: an optional second root beside `ge_backend`."""
