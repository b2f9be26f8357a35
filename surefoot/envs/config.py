"""Which environment, and how it is wrapped. No heavy import: the command line reads this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from surefoot.envs.backends import FORMS
from surefoot.errors import UsageError
from surefoot.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class EnvConfig(Settings):
    """The environment."""

    env: str = setting(
        "",
        f"Registered id, `module:Id`, `path/to/file.py:Factory`, or an id of a backend: {', '.join(FORMS)}.",
        flag=False,
    )
    env_kwargs: dict[str, Any] = setting({}, "Keyword arguments of the environment, as JSON.")
    wrappers: tuple[str, ...] = setting(
        (),
        "Wrappers, innermost first: a name from gymnasium.wrappers, `module:Class` or `file.py:Class`, "
        "each with optional JSON arguments: 'TimeLimit{\"max_episode_steps\":100}'.",
        metavar="WRAPPER",
    )
    max_episode_steps: int | None = setting(
        None, "Truncate episodes after this many steps; none: the env's own limit.", low=1
    )
    workers: int | Literal["auto"] = setting(
        0,
        "Processes that step the envs; 0: no extra ones, fastest for cheap envs; auto: measured at the start.",
        low=0,
    )
    env_timeout: float = setting(
        60.0, "Seconds that a worker may take for a step before it counts as hung; needs workers.", above=0.0
    )
    restart_workers: int = setting(
        0, "How many dead or hung workers to replace in total; their open episodes are cut.", low=0
    )
    frame_stack: int = setting(
        1, "Stack this many of the last observations (Atari games have four of their own).", low=1
    )
    sign_rewards: bool = setting(False, "Learn from the sign of rewards only, as is usual for Atari.")
    reward_scale: float = setting(
        1.0, "Multiply the rewards that are learned from; reported returns stay as the env gave them."
    )
    normalize_rewards: bool = setting(
        False, "Divide rewards by the running std of the discounted return, clipped to ±10 (learning only)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restart_workers and self.workers == 0:
            raise UsageError("restart_workers has no effect without workers; set --workers as well")

    @property
    def num_workers(self) -> int:
        """What `auto` has become by the time that the envs are made."""
        assert self.workers != "auto"
        return self.workers
