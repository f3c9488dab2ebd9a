"""Methods of others to compare with."""
