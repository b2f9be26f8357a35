"""Settings: names and values to the settings of one run, presets, what other libraries call them. Imports no torch."""
