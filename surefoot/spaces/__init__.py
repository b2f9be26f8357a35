"""What spaces have in common for envs and policies: one row of numbers per value, and a form that can be saved."""
