"""The lecture made exact: finite MDPs on which every formula from η(π) to the clip is a number.

NumPy alone, float64; only `bridge` knows torch. `docs/theory.md` walks through it.
"""
