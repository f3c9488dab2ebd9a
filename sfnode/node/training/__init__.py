"""What a node computes with: its model on a thread of its own, the steps that it orders, and who may ask."""
