"""The computing of a node: its model on a thread of its own, the steps that it orders, questions to it."""
