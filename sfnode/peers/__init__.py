"""Peers that a node knows and links to: sans-IO policy, and questions to peers."""
