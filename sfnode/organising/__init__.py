"""The organiser's policy: when to close, seal, admit and finish, and what a seal contains. Sans-IO.

organiser    whether the organiser may sign; one decision is under way at a time
rules        which decision is due, in order
known        the state that the rules read; policy, events and view define parts of it
evaluation   measurements before seals: line searches, evidence
reporting    reports on a run, by any node
"""
