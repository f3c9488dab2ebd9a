"""Prepares a run: reads its data, proposes a task, measures hyperparameters, writes its files. Nothing here
prints.

The modules in the order of their use: `table` (contents of a file), `proposals` and `plan` (tasks that the
file allows, and its owner's answers), `recipes` (defaults), `manifest` (manifest that follows from options),
`scalars`, `trial`, `rewards`, `first_order` and `measuring` (hyperparameters), `files` (files beside the
manifest).
"""
