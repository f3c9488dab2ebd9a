"""Figures over time: time series, contributions, the history of a run."""
