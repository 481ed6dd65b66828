"""Text generation: requests, their sequences, the cache's blocks, and what each step computes."""
