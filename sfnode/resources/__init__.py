"""Limits that a machine's owner sets: sensors, policy, and what keeps a node within them."""
