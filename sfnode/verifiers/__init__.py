"""Verifiers: rules that score a generated answer, written as data in a manifest, and the function that
applies the rules.

docs/verifiers.md has the exact rules. The package executes, imports or fetches nothing that a verifier or an
answer names, except plug-ins that the machine's owner has permitted. Except for plug-ins, the time to score
an answer is bounded. The package knows no model and no tensor, and reads no file except its presets and the
source files of plug-ins.
"""
