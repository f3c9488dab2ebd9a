"""The public side of a run: a page made from its signed log, certificates, and a directory of runs."""
