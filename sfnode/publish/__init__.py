"""The public side of a run: a page made from its signed log, and a directory of runs."""
