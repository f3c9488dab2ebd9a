"""Verifiers: rules that score a generated answer, as data of a manifest, and the function that scores.

docs/verifiers.md has the exact rules. Nothing here executes, imports or fetches what a verifier or an answer
names, and the time for an answer is bounded; but for plug-ins to which the owner of a machine has said yes.
Knows no model, no tensor and no other file.
"""
