"""`sfnode doctor`: finds problems that would keep a node from working on this machine before it runs.

Checks are plain functions that return findings. `examine` runs all checks concurrently, each with a deadline.
Checks observe and measure, and remove everything that they create.
"""
