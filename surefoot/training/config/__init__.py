"""The settings of a run: how they are resolved, presets, other libraries' names for them. Imports no torch."""
