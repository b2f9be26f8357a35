"""Spaces, for envs and policies: values as rows of numbers, masks, and spaces as JSON."""
