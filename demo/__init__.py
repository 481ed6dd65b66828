"""`python -m demo`: a real encoder on the real Triton server, text in, embeddings out."""
