"""Compiled twins of hot functions. Each has a readable oracle with the same meaning, and tests that compare.

`library.py` finds and loads what was built; `network.py` is the actor-critic made of linear layers, `recurrent.py` its
memory, `classic.py` Gymnasium's classic control, `rollout.py` policy and envs stepped together.
"""
