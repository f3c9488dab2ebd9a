"""The local control API: server, routes, metrics, and its client."""
