"""Views of a running node, for a terminal and for a browser; all they know comes through the client."""
