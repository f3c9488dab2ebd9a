"""Benchmarks of `sfnode lab bench`: step time, memory, throughput."""
