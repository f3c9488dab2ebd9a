"""sfnode: a peer-to-peer daemon that trains language models by SeedFlood (arXiv 2602.18181)."""

__version__ = "0.1.0"
