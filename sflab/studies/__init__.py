"""Studies: comparisons of many simulated training runs, such as that of the SeedFlood paper."""
