"""`python -m demo`: a real encoder and a real chat model on the real Triton server."""
