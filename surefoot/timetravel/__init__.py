"""Going back into a run: one of its updates rebuilt, or the place where two runs part. Writes nothing to a run."""
