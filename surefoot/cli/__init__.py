"""The command line: one file per command. Starting up imports neither torch nor anything that needs NumPy."""
