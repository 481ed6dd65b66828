"""An executor at work: connections, lanes, models."""
