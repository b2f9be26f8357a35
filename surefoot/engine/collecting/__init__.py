"""Rollouts: one loop, with what stores them and how envs are stepped as its parts."""
