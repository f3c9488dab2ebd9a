"""Methods to compare SeedFlood with."""
