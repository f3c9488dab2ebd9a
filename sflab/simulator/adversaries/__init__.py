"""Adversaries: peers that attack the run."""
