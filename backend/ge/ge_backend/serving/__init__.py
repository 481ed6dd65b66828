"""Opening a model, for the host, the commands and the benchmarks."""
