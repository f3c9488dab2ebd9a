"""Checks of what must hold at every moment, and in the end."""
