"""The organiser's policy: when to close, seal, admit and finish, and what a seal says. Sans-IO."""
