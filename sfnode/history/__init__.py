"""The past of a run, from the log in a folder: states of seals, archives and worths."""
