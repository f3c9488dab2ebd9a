"""The SeedFlood wire protocol and state machine (protocol/SPEC.md), pure.

Nothing here reads a clock, draws a random number, opens a socket or knows what a tensor is.
The same code therefore runs in the daemon, in the simulator and in the tests.
"""

PROTOCOL_VERSION = 1
"""SPEC V1: peers with different versions part with a Goodbye."""
