"""A device that computes next to nothing."""
