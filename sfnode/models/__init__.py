"""Models as files and modules: where they come from, how they are stored, which layers are trained."""
