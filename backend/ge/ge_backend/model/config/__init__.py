"""What can be configured, and what it is read from: the host's document, settings, placement."""
