"""Benchmarks: `python -m benchmarks.bench_serving`, and what it is made of."""
