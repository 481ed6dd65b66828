"""Buckets of the two phases of text generation: prompts, and one token at a time."""
