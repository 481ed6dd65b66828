"""How a model's tensors relate to requests: what is padded, made and cut."""
