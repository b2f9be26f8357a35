"""Compiled versions of hot functions. Each has a readable reference implementation, and tests that compare the two.

`library.py` finds and loads the compiled libraries. `network.py` is the actor-critic made of linear layers,
`recurrent.py` its memory, `classic.py` Gymnasium's classic control, and `rollout.py` steps policy and envs together.
"""
