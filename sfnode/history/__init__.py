"""The past of a run, computed from the log in a folder: states of seals, archives and worths."""
