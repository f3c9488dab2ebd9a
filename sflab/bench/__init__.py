"""Benchmarks of `sfnode bench`: step time, memory, throughput."""
