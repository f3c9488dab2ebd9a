"""Training of many virtual clients in one process, and studies that compare methods of it."""
