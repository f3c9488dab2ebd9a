"""Tasks: load rows of data, and turn them into tokens, losses and metrics."""
