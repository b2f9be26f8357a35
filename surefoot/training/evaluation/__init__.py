"""A trained policy at work: the agent, its episodes, their returns and pictures."""
