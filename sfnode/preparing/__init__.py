"""Prepares a run: look at the data, propose, ask, measure, write. Nothing here prints.

In this order: `table` (what a file has), `proposals` and `plan` (what could be learnt from it, and what its
owner answers), `manifest` (the run of these options), `scalars`, `trial`, `rewards`, `first_order` and
`measuring` (its numbers), `files` (what lies beside its manifest).
"""
