"""The lecture's formulas computed exactly, from η(π) to the clip, on finite MDPs.

Only NumPy, in float64; `bridge` is the only module that uses torch. `docs/theory.md` explains it.
"""
