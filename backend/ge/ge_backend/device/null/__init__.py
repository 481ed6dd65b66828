"""A device that computes next to nothing and counts everything."""
