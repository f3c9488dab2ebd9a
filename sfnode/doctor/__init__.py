"""`sfnode doctor`: finds problems that would keep a node from working on this machine before it runs.

Checks are plain functions that return findings. `examine` runs them all at once, each with a deadline. They
observe and measure, and remove everything that they create.
"""
