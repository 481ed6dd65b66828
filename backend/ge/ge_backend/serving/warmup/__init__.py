"""Preparing a model's buckets and measuring them; what is kept of it on disk."""
