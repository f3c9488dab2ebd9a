"""Downloads base models from peers and serves them to others, piece by piece."""
