"""The organiser's policy: when to close, seal, admit and finish, and what a seal says. Sans-IO.

organiser    whether it may sign; one decision is under way at a time
rules        what is due, in order
known        what the rules are functions of, with policy, events and view
evaluation   what work is worth: line searches, evidence
reporting    what can be told of a run, by any node
"""
