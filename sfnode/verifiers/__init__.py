"""Verifiers: rules that score a generated answer, as data of a manifest, and the function that scores.

docs/verifiers.md has the exact rules. Nothing here executes, imports or fetches what a verifier or an answer
names, except plug-ins that a machine's owner has permitted. The time to score an answer is bounded. The
package knows no model, no tensor and no other file.
"""
