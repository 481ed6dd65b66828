"""Ensembles run as one model: steps, the tensors between them, and the way of a batch through."""
