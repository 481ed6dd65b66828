"""The simulated machine below the calls: memory, devices, streams, loaded models."""
