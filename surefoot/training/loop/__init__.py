"""What happens between two updates: metrics, checkpoints, evaluations, the target."""
