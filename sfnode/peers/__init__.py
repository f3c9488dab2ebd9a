"""The peers that a node knows and has links with: a sans-IO policy, and requests to peers."""
