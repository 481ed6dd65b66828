"""What commands know of a model: its folder, its configuration file, and its graph, opened."""
