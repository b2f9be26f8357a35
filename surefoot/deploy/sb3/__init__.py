"""Models that Stable-Baselines3 and sb3-contrib saved, as runs of ours."""
