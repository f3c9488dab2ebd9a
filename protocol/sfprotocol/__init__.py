"""The SeedFlood wire protocol and its state machine (protocol/SPEC.md), without input or output.

Nothing here reads a clock, draws a random number, opens a socket or knows what a tensor is. The same code
therefore runs in the daemon, in the simulator and in the tests. `machine.Machine` is the entry: it takes
events and returns actions; `host` carries them out. Importing the package loads none of its modules.
"""
