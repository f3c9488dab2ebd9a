"""Simulated networks of shipped nodes, in virtual time. The seed, one integer, reproduces any failure.

`world` has the computers, `faults`, `actors` and `turncoats` the faults and attacks. `invariants`,
`organised_runs` and `fold` check the promises. `runner` runs one scenario.
"""
