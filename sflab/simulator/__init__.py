"""Simulated networks of shipped nodes, in virtual time: any failure repeats from one integer.

`world` is where the nodes live, `faults` and `adversaries` what happens to them, `checks` what must hold
meanwhile, and `runner` how one scenario goes.
"""
