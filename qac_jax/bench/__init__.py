"""Benchmarks: a ratio against a peer in the same run, started with `qac bench NAME`."""
