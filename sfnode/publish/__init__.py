"""What a run shows to the world: a page made from its signed log, certificates, and a directory of runs."""
