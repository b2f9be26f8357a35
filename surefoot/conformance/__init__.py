"""Closed-form checks of any policy-gradient library, through an adapter: one Python file with a few functions.

`tasks.py` and `child.py` run in the adapter's own Python environment, where surefoot may not be installed. They import
only NumPy and Gymnasium.
"""
