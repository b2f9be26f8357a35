"""Builds the parts of a trainer, after checking that the settings make sense and fit into memory."""
