"""Computation in a node: the model on its own thread, the schedule of its steps, and questions to the
model."""
