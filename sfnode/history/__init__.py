"""The past of a run, computed from the log in a folder: states at seals, imports of archives, and repeated
measurements of what members' updates are worth."""
