"""The organiser's policy: when to close, seal, admit and finish, and what a seal says. Sans-IO.

organiser    decides; policy, events, view, feeds and sanctions are what it decides by
admission, checkpoints, guard, owner_decisions, renewing    concerns of its own
evaluation   what work is worth: line searches, evidence
reporting    what can be told of a run, by any node
"""
