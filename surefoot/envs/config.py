"""Which environment, and how it is wrapped. No heavy import: the command line reads this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from surefoot.envs.backends import FORMS
from surefoot.errors import UsageError
from surefoot.ranges import among
from surefoot.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class EnvConfig(Settings):
    """The environment."""

    env: str = setting(
        "",
        f"Registered id, `module:Id`, `path/to/file.py:Factory`, or an id of a backend: {', '.join(FORMS)}.",
        flag=False,
    )
    env_kwargs: dict[str, object] = setting({}, "Keyword arguments of the environment, as JSON.")
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
        "Worker processes that step the envs; 0: none, fastest for cheap envs; auto: measured at the start.",
        low=0,
    )
    env_timeout: float = setting(
        60.0, "Seconds a worker may take for a step before it is considered hung; needs workers.", above=0.0
    )
    restart_workers: int = setting(
        0, "Total number of dead or hung workers to replace; their open episodes are cut.", low=0
    )
    frame_stack: int = setting(
        1, "Stack this many recent observations (Atari preprocessing already stacks four).", low=1, high=1024
    )
    sign_rewards: bool = setting(False, "Learn from the sign of rewards only, as is usual for Atari.")
    reward_scale: float = setting(
        1.0, "Multiply rewards by this for learning; reported returns keep the env's own rewards."
    )
    normalize_rewards: bool = setting(
        False,
        "Divide rewards by the running std of the discounted return, clipped to ±10 (learning only).",
        search=among(False, True),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restart_workers and self.workers == 0:
            raise UsageError("restart_workers has no effect without workers; set --workers as well")

    @property
    def one_by_one(self) -> str:
        """The first setting that needs an object for every env; empty if they can be stepped together."""
        given = {"wrappers": self.wrappers, "frame_stack": self.frame_stack > 1, "workers": self.workers}
        return next((name for name, value in given.items() if value), "")

    @property
    def num_workers(self) -> int:
        """The number of workers; `auto` has been resolved by the time envs are made."""
        assert self.workers != "auto"
        return self.workers
