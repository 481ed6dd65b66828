"""A running server's metrics, read twice and told as rates."""
