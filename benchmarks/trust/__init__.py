"""What a server does when things go wrong under load: `python -m benchmarks.trust`."""
