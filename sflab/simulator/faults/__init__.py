"""Fault injection: the kinds of faults as data, and what makes them happen."""
