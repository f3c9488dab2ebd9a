"""The simulator: a network on a virtual clock that runs the daemon's host and machine, from one seed.

`runner.simulate` runs one scenario; `scenarios.SCENARIOS` lists them. Nothing here knows torch, asyncio or
real sockets: what a node computes is a number from the seeded generator, and what it keeps is in memory.
"""
