"""The simulated world: a network in virtual time, and computers on which shipped nodes run."""
