"""The work between two updates: metrics, checkpoints, evaluations, the target."""
