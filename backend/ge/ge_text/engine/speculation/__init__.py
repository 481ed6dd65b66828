"""Speculative decoding: who guesses tokens, how many are worth verifying, and which were right."""
