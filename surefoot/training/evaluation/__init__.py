"""Playing episodes with a trained policy: the agent, evaluation, videos."""
