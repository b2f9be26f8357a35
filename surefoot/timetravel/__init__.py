"""Going back into a run: any of its updates rebuilt, and where two runs part. Nothing is written to a run's directory."""
