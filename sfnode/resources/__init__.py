"""Limits that a machine's owner sets: sensors, policy, and the means of keeping a node within them."""
