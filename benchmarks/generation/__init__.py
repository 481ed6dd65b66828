"""What `benchmarks.bench_generation` compares, and what it asks of each."""
