"""Model files, and the files beside them."""
