"""`sfnode doctor`: what would keep a node from working on this machine, found out before it runs.

Checks are plain functions that return findings; `examine` runs them all at once, each with a deadline. They
look and measure, and change nothing but what they remove again.
"""
