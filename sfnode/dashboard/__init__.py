"""Views of a running node for a terminal and a browser, which know it only through the client."""
