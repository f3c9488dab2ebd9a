"""Training of many virtual clients of one model in one process."""
