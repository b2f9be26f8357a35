"""Goes back into a run: rebuilds one of its updates, or finds where two runs first differ. Writes nothing to a run."""
