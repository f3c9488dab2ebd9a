"""The organiser's policy: when to close, seal, admit and finish, and what a seal says. Sans-IO.

organiser    decides; policy, events, desk, feeds and members are what it decides by
admission, checkpoints, guard, renewing, wishes    concerns of its own
evaluation   what work is worth: line searches, evidence, panels of validators
reporting    what can be told of a run, by any node
"""
