"""Studies: many simulated training runs that are compared, such as those of the SeedFlood paper."""
