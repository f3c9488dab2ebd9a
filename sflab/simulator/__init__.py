"""Simulated networks of shipped nodes, in virtual time: any failure repeats from one integer.

`world` is where the nodes live, `faults`, `actors` and `turncoats` what happens to them, `invariants`,
`organised_runs` and `fold` what must hold
meanwhile, and `runner` how one scenario goes.
"""
