"""Observation → (distribution over actions, value)."""
