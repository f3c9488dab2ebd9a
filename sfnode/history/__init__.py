"""The past of a run by the log in a folder: seals and what has changed between them, archives, worths."""
