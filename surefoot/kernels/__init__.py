"""Compiled twins of hot functions. Each has a readable oracle in PyTorch with the same meaning, and tests that compare.

`library.py` finds and loads what was built; `network.py` is the actor-critic made of linear layers.
"""
