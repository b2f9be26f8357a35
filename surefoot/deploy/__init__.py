"""Policies outside of training: the light agent, and files for other programs. All follow one description."""
