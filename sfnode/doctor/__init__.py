"""`sfnode doctor`: finds, before a node runs, problems that would keep it from working on this machine.

Checks are plain functions that return findings. `examine` runs all checks concurrently, each with a deadline.
Checks observe and measure, and remove everything that they create.
"""
