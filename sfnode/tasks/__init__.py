"""Tasks: from rows of data to tokens, losses and metrics."""
