"""The simulated world: clock, network, disks, and nodes that run the shipped host and machine."""
