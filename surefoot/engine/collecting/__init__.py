"""Rollout collection: one loop, with interchangeable storage and stepping."""
