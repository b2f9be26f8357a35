"""The ids of the environments that come with surefoot. Gymnasium imports their code when one is made."""

from __future__ import annotations

SHIPPED = {  # id -> (where its factory is, time limit)
    "surefoot/Chain-v0": ("surefoot.theory.envs:chain", 100),
    "surefoot/Grid-v0": ("surefoot.theory.envs:grid", 100),
    "surefoot/Cliff-v0": ("surefoot.theory.envs:cliff", 100),
    "surefoot/Random-v0": ("surefoot.theory.envs:random", 100),
}


def register_shipped() -> None:
    """Register them with Gymnasium; may be called more than once."""
    import gymnasium as gym  # not above: the command line reads the ids without it

    for name, (entry_point, limit) in SHIPPED.items():
        if name not in gym.envs.registration.registry:
            gym.register(name, entry_point=entry_point, max_episode_steps=limit)
