"""Statistics, curves, comparisons and their pictures. Reads runs through `surefoot.runs` alone. Imports no torch."""
